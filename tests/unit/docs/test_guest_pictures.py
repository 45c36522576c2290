# SPDX-License-Identifier: Apache-2.0
"""The manual shows what nova-compute builds for guests of three hosts."""

import pathlib

import pytest

from tests.support import golden
from tools import draw_guests

PICTURES = draw_guests.render()


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_up_to_date(path: pathlib.Path) -> None:
    golden.check(path, PICTURES[path])


def test_each_picture_is_on_the_page() -> None:
    page = (draw_guests.FOLDER.parent / "guest-topology.rst").read_text()
    for path in PICTURES:
        assert f":: guests/{path.name}\n" in page
    assert {*draw_guests.FOLDER.iterdir()} == PICTURES.keys()
