# SPDX-License-Identifier: Apache-2.0
"""Bitstream images while Glance is unreachable, faulty or sends wrong data."""

import errno
import logging
import socket
from pathlib import Path
from typing import Any

import glanceclient.exc
import keystoneauth1.exceptions
import pytest
import requests
import urllib3
from nova import exception
from nova.image import glance

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

    @pytest.mark.parametrize("is_reset", [False, True])
    def test_the_connection_breaks(
        self,
        standin: glances.StandIn,
        make: Make,
        tmp_path: Path,
        is_reset: bool,
    ) -> None:
        """Another host may get it, and its owner reads no address."""
        image = add(standin)
        standin.cut.add(image)
        standin.is_reset = is_reset
        with pytest.raises(errors.BitstreamError) as caught:
            make().fetch(user(), [image])
        assert caught.value.is_local
        assert caught.value.public.endswith("the host can't provide it now")
        assert not list_cached(tmp_path)

    def test_damaged_content_is_damaged_on_each_host(
        self, standin: glances.StandIn, make: Make
    ) -> None:
        image = add(standin)
        standin.contents[image] = CONTENT[:-1] + b"x"
        with pytest.raises(errors.BitstreamError) as caught:
            make().fetch(user(), [image])
        assert not caught.value.is_local
        assert "does not have the image's checksum" in caught.value.public
        assert "expected" not in caught.value.public

    @pytest.mark.parametrize("status", [407, 408, 429])
    def test_a_busy_glance_says_nothing_about_the_image(
        self, standin: glances.StandIn, make: Make, status: int
    ) -> None:
        image = add(standin)
        standin.answers["file"] = status
        with pytest.raises(errors.BitstreamError) as caught:
            make().fetch(user(), [image])
        assert caught.value.is_local
        standin.answers.clear()
        bitstreams = make().fetch(user(), [image])
        standin.answers["image"] = status
        assert make().fetch(user(), [image]) == bitstreams


class Failing:
    """Nova's image API, whose calls fail with an error of any library."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get(self, *_: Any, **__: Any) -> Any:
        raise self._error


SERVER = "glance.internal.example"
_AT = f"HTTPConnectionPool(host='{SERVER}', port=9292)"


class Pool(urllib3.connectionpool.HTTPConnectionPool):
    def __str__(self) -> str:
        return _AT


class TestErrorsOfLibraries:
    @pytest.mark.parametrize(
        "error",
        [
            requests.ConnectionError(f"{_AT}: Max retries exceeded"),
            requests.ReadTimeout(f"{_AT}: Read timed out."),
            requests.exceptions.ChunkedEncodingError(f"{_AT}: broken"),
            requests.exceptions.SSLError(f"{_AT}: certificate expired"),
            urllib3.exceptions.ReadTimeoutError(Pool(SERVER), "/v2", "slow"),
            BrokenPipeError(errno.EPIPE, "Broken pipe", SERVER),
            ConnectionResetError(errno.ECONNRESET, "reset", SERVER),
            socket.gaierror(-2, f"{SERVER}: Name or service not known"),
            TimeoutError(f"{SERVER} timed out"),
            OSError(
                errno.EPIPE,
                "Corrupt image download. Expected checksum is 1 but md5"
                " algorithm is not available on the client",
            ),
            glanceclient.exc.CommunicationError(f"no {SERVER}"),
            glanceclient.exc.HTTPServiceUnavailable(SERVER),
            keystoneauth1.exceptions.ConnectFailure(f"no {SERVER}"),
            exception.GlanceConnectionFailed(server=SERVER, reason="no"),
            exception.NovaException(f"something with {SERVER}"),
            glance.cursive_exception.SignatureVerificationError(
                reason=f"Unable to retrieve certificate with ID: {SERVER}"
            ),
            RuntimeError(f"something with {SERVER}"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_they_say_nothing_about_the_image(
        self, make: Make, error: Exception
    ) -> None:
        images = make(api=Failing(error))
        with pytest.raises(errors.BitstreamError) as caught:
            images.fetch(user(), [MISSING])
        assert caught.value.is_local
        assert SERVER not in caught.value.public
        assert type(error).__name__ in str(caught.value)

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (exception.ImageNotFound(image_id=SERVER), "no such image"),
            (exception.ImageNotAuthorized(image_id=SERVER), "may not read"),
            (
                exception.ImageBadRequest(image_id="1", response=SERVER),
                "does not understand",
            ),
            (
                glance.cursive_exception.SignatureVerificationError(
                    reason=SERVER
                ),
                "signature",
            ),
            (glanceclient.exc.HTTPConflict(SERVER), "HTTP 409"),
        ],
    )
    def test_the_owner_reads_our_words_only(
        self, make: Make, error: Exception, words: str
    ) -> None:
        images = make(api=Failing(error))
        with pytest.raises(errors.BitstreamError) as caught:
            images.fetch(user(), [MISSING])
        assert not caught.value.is_local
        assert words in caught.value.public
        assert SERVER not in caught.value.public
        assert SERVER in str(caught.value)
