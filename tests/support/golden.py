# SPDX-License-Identifier: Apache-2.0
"""Golden files: expected output, renewed on request."""

import difflib
import os
import pathlib

import pytest

PLACE = pathlib.Path(__file__).parents[1] / "golden"
#: Environment variable that renews the files.
UPDATE = "NOVA_ACCEL_UPDATE_GOLDEN"


def check(path: pathlib.Path, text: str) -> None:
    """Check that a text is that of a file, or write the file."""
    if os.environ.get(UPDATE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        pytest.skip(f"wrote {path.name}")
    assert path.is_file(), f"no such golden file; write it with {UPDATE}=1"
    expected = path.read_text()
    difference = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), "expected", "printed"
    )
    assert text == expected, "\n".join((path.name, *difference))
