# SPDX-License-Identifier: Apache-2.0
"""The doctor finds the methods of Nova that the filter wraps."""

import pathlib

import pytest

from nova_accel.doctor.sources import wrapped_methods

pytest.importorskip("nova", reason="the compared methods are Nova's")
CAPTURE, CHOICES = (
    wrapped_methods.METHODS[check] for check in ("capture", "choices")
)


def test_the_installed_release_is_known() -> None:
    assert wrapped_methods.find_differences() == {}


def test_the_filter_needs_the_same_methods() -> None:
    from filters import candidate_capture, profile_order

    assert CAPTURE.parameters == candidate_capture.PARAMETERS
    assert CAPTURE.name == candidate_capture._METHOD
    assert CHOICES.name == profile_order._METHOD


@pytest.mark.parametrize(
    ("method", "text", "words"),
    [
        (
            CAPTURE,
            "class A:\n"
            " def get_allocation_candidates(self, context, limit): pass\n",
            "takes (self, context, limit)",
        ),
        (
            CHOICES,
            "class A:\n def select_destinations(self, context, spec): pass\n",
            "takes (self, context, spec)",
        ),
        (CAPTURE, "class A: pass\n", "has no get_allocation_candidates"),
        (CAPTURE, "def (", "can't be read: invalid syntax"),
        (CAPTURE, None, "can't be read: [Errno 2]"),
    ],
)
def test_another_method_is_described(
    tmp_path: pathlib.Path,
    method: wrapped_methods.WrappedMethod,
    text: str | None,
    words: str,
) -> None:
    path = tmp_path / "report.py"
    if text is not None:
        path.write_text(text)

    assert words in method.compare(path)
