# SPDX-License-Identifier: Apache-2.0
"""Glance is away or ill, or something else comes."""

import logging
from pathlib import Path

import pytest

from nova_accel import errors
from tests.functional.images import glances
from tests.functional.images.asking import (
    CONTENT,
    MISSING,
    Make,
    Set,
    add,
    kept,
    lines,
    user,
)
from tests.support.fpga import bitstream_files


class TestBroken:
    def test_glance_is_away_and_the_image_is_here(
        self,
        standin: glances.StandIn,
        make: Make,
        option: Set,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        image = add(standin)
        found = make().fetch(user(), [image])
        option("glance", api_servers=["http://127.0.0.1:1"])
        assert make().fetch(user(), [image]) == found
        (line,) = lines(caplog, logging.WARNING)
        assert image in line
        with pytest.raises(errors.BitstreamError, match="does not allow"):
            make(owners=frozenset()).fetch(user(), [image])

    @pytest.mark.parametrize("servers", [["http://127.0.0.1:1"], []])
    def test_glance_is_away_or_nowhere_and_the_image_too(
        self, make: Make, option: Set, servers: list[str]
    ) -> None:
        option("glance", api_servers=servers, num_retries=0)
        with pytest.raises(
            errors.BitstreamError, match=r"can't be reached.*see that Glance"
        ):
            make().fetch(user(), [MISSING])

    @pytest.mark.parametrize("status", [500, 502, 503])
    def test_glance_is_ill(
        self, standin: glances.StandIn, make: Make, status: int
    ) -> None:
        image = add(standin)
        found = make().fetch(user(), [image])
        standin.answers["image"] = status
        assert make().fetch(user(), [image]) == found

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 409])
    def test_glance_says_no(
        self, standin: glances.StandIn, make: Make, status: int
    ) -> None:
        image = add(standin)
        make().fetch(user(), [image])
        standin.answers["image"] = status
        with pytest.raises(
            errors.BitstreamError, match="can't read it from Glance"
        ):
            make().fetch(user(), [image])

    @pytest.mark.parametrize("status", [204, 403, 404, 500, 503])
    def test_the_content_is_refused(
        self,
        standin: glances.StandIn,
        make: Make,
        tmp_path: Path,
        status: int,
    ) -> None:
        image = add(standin)
        standin.answers["file"] = status
        with pytest.raises(
            errors.BitstreamError, match="can't read it from Glance"
        ):
            make().fetch(user(), [image])
        assert not kept(tmp_path)
        standin.answers.clear()
        assert make().fetch(user(), [image])

    @pytest.mark.parametrize(
        "came", [CONTENT[:-1] + b"x", CONTENT[:-1], CONTENT + b"x", b""]
    )
    def test_something_else_comes(
        self,
        standin: glances.StandIn,
        make: Make,
        tmp_path: Path,
        came: bytes,
    ) -> None:
        image = add(standin)
        standin.contents[image] = came
        with pytest.raises(errors.BitstreamError):
            make().fetch(user(), [image])
        assert not kept(tmp_path)

    def test_something_else_comes_and_glance_stands_by_it(
        self, standin: glances.StandIn, make: Make, tmp_path: Path
    ) -> None:
        """Where Glance tells no digest that its client could compare."""
        image = add(
            standin, accelerator_sha512=bitstream_files.digest(CONTENT)
        )
        standin.change(
            image, os_hash_algo=None, os_hash_value=None, checksum=None
        )
        standin.contents[image] = CONTENT[:-1] + b"x"
        with pytest.raises(errors.BitstreamError, match="SHA-512"):
            make().fetch(user(), [image])
        standin.contents[image] = CONTENT * 2
        with pytest.raises(errors.BitstreamError, match="more than"):
            make().fetch(user(), [image])
        assert not kept(tmp_path)

    def test_the_connection_breaks(
        self, standin: glances.StandIn, make: Make, tmp_path: Path
    ) -> None:
        image = add(standin)
        standin.cut.add(image)
        with pytest.raises(errors.BitstreamError):
            make().fetch(user(), [image])
        assert not kept(tmp_path)
