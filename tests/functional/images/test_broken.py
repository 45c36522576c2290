# SPDX-License-Identifier: Apache-2.0
"""Bitstream images while Glance is unreachable, faulty or sends wrong data."""

import logging
from pathlib import Path

import pytest

from nova_accel import errors
from tests.functional.images import glances
from tests.functional.images.image_requests import (
    CONTENT,
    MISSING,
    Make,
    Set,
    add,
    lines,
    list_cached,
    user,
)
from tests.support.fpga import bitstream_files


class TestBroken:
    def test_a_cached_image_needs_no_glance(
        self,
        standin: glances.StandIn,
        make: Make,
        option: Set,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        image = add(standin)
        bitstreams = make().fetch(user(), [image])
        option("glance", api_servers=["http://127.0.0.1:1"])
        assert make().fetch(user(), [image]) == bitstreams
        (line,) = lines(caplog, logging.WARNING)
        assert image in line
        with pytest.raises(errors.BitstreamError, match="does not allow"):
            make(owners=frozenset()).fetch(user(), [image])

    @pytest.mark.parametrize("servers", [["http://127.0.0.1:1"], []])
    def test_a_missing_image_needs_glance(
        self, make: Make, option: Set, servers: list[str]
    ) -> None:
        option("glance", api_servers=servers, num_retries=0)
        with pytest.raises(
            errors.BitstreamError, match=r"can't be reached.*see that Glance"
        ):
            make().fetch(user(), [MISSING])

    @pytest.mark.parametrize("status", [500, 502, 503])
    def test_a_cached_image_survives_server_errors(
        self, standin: glances.StandIn, make: Make, status: int
    ) -> None:
        image = add(standin)
        bitstreams = make().fetch(user(), [image])
        standin.answers["image"] = status
        assert make().fetch(user(), [image]) == bitstreams

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 409])
    def test_a_cached_image_is_refused_with_a_client_error(
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
        assert not list_cached(tmp_path)
        standin.answers.clear()
        assert make().fetch(user(), [image])

    @pytest.mark.parametrize(
        "content", [CONTENT[:-1] + b"x", CONTENT[:-1], CONTENT + b"x", b""]
    )
    def test_wrong_content_is_not_cached(
        self,
        standin: glances.StandIn,
        make: Make,
        tmp_path: Path,
        content: bytes,
    ) -> None:
        image = add(standin)
        standin.contents[image] = content
        with pytest.raises(errors.BitstreamError):
            make().fetch(user(), [image])
        assert not list_cached(tmp_path)

    def test_wrong_content_without_digests_in_glance(
        self, standin: glances.StandIn, make: Make, tmp_path: Path
    ) -> None:
        """Glance's client has no digest to compare."""
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
        assert not list_cached(tmp_path)

    def test_the_connection_breaks(
        self, standin: glances.StandIn, make: Make, tmp_path: Path
    ) -> None:
        image = add(standin)
        standin.cut.add(image)
        with pytest.raises(errors.BitstreamError):
            make().fetch(user(), [image])
        assert not list_cached(tmp_path)
