# SPDX-License-Identifier: Apache-2.0
"""The doctor finds the method of Nova that the filter wraps."""

import pathlib

import pytest

from nova_accel.doctor.sources import captured_method

pytest.importorskip("nova", reason="the compared method is Nova's")


def test_the_installed_release_is_known() -> None:
    assert captured_method.find_difference() == ""


def test_the_filter_needs_the_same_parameters() -> None:
    from filters import candidate_capture

    assert captured_method.PARAMETERS == candidate_capture.PARAMETERS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "class A:\n"
            " def get_allocation_candidates(self, context, limit): pass\n",
            "takes (self, context, limit)",
        ),
        ("class A: pass\n", "has no get_allocation_candidates"),
        ("def (", "can't be read: invalid syntax"),
        (None, "can't be read: [Errno 2]"),
    ],
)
def test_another_method_is_described(
    tmp_path: pathlib.Path, text: str | None, words: str
) -> None:
    path = tmp_path / "report.py"
    if text is not None:
        path.write_text(text)

    assert words in captured_method.compare(path)
