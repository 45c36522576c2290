# SPDX-License-Identifier: Apache-2.0
"""Downloads of allowed bitstream images, and refusals of others."""

import logging
from pathlib import Path
from typing import Any

import pytest

from nova_accel import errors
from tests.functional.images import glances
from tests.functional.images.image_requests import (
    CONTENT,
    MISSING,
    Make,
    add,
    lines,
    list_cached,
    user,
)
from tests.support.fpga import bitstream_files


class TestFetch:
    def test_an_image_becomes_a_file(
        self,
        glance: glances.Glance,
        make: Make,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO)
        before = glance.downloads()
        image = add(glance)
        images = make()
        assert images.read_cached([image]) == {}
        bitstream = images.fetch(user(), [image])[image]
        assert Path(bitstream.path).read_bytes() == CONTENT
        assert bitstream.name == image
        assert bitstream.function == bitstream_files.FUNCTION
        assert bitstream.interface == bitstream_files.INTERFACE
        assert bitstream.vendor == "intel"
        assert bitstream.sha512 == bitstream_files.digest(CONTENT)
        assert bitstream.size == len(CONTENT)
        assert images.read_cached([image]) == {image: bitstream}
        assert images.fetch(user(), [image]) == {image: bitstream}
        assert make().read_cached([image, MISSING]) == {image: bitstream}
        assert glance.downloads() == before + 1
        (line,) = lines(caplog, logging.INFO)
        assert (
            f"bitstream {image} (function {bitstream_files.FUNCTION}, 0.2 "
            in line
        )

    def test_several_at_once(self, glance: glances.Glance, make: Make) -> None:
        first, second = add(glance), add(glance, b"raw bits")
        bitstreams = make().fetch(user(), [first, second, first.upper()])
        assert bitstreams.keys() == {first, second, first.upper()}
        assert bitstreams[first.upper()] == bitstreams[first]

    @pytest.mark.parametrize(
        ("changed", "word"),
        [
            ({"owners": frozenset()}, "bitstream_owners"),
            ({"owners": frozenset({"another"})}, bitstream_files.OWNER),
            ({"limit": 1000}, "bitstream_cache_mb"),
        ],
    )
    def test_what_is_not_allowed_is_not_downloaded(
        self,
        glance: glances.Glance,
        make: Make,
        tmp_path: Path,
        changed: dict[str, Any],
        word: str,
    ) -> None:
        before = glance.downloads()
        with pytest.raises(errors.BitstreamError, match=word):
            make(**changed).fetch(user(), [add(glance)])
        assert glance.downloads() == before
        assert not list_cached(tmp_path)

    def test_an_image_may_be_allowed_by_its_id(
        self, glance: glances.Glance, make: Make
    ) -> None:
        image = add(glance)
        images = make(owners=frozenset(), images=frozenset({image}))
        assert image in images.fetch(user(), [image])

    def test_a_users_property_is_no_owner(
        self, standin: glances.StandIn, make: Make
    ) -> None:
        """Glance itself sets only the base properties of its schema."""
        image = add(standin)
        standin.change(image, owner=None, owner_id=bitstream_files.OWNER)
        with pytest.raises(errors.BitstreamError):
            make().fetch(user(), [image])

    def test_all_are_checked_before_one_is_downloaded(
        self, glance: glances.Glance, make: Make
    ) -> None:
        before = glance.downloads()
        good = add(glance)
        bad = add(glance, accelerator_vendor="no vendor")
        with pytest.raises(errors.BitstreamError, match=bad):
            make().fetch(user(), [good, bad])
        assert glance.downloads() == before

    def test_an_image_without_content(
        self, glance: glances.Glance, make: Make
    ) -> None:
        with pytest.raises(errors.BitstreamError, match="queued"):
            make().fetch(user(), [add(glance, b"")])

    def test_a_property_is_missing(
        self, glance: glances.Glance, make: Make
    ) -> None:
        image = glance.add(CONTENT, {}, bitstream_files.OWNER)
        with pytest.raises(
            errors.BitstreamError, match="--property accelerator_function_id"
        ):
            make().fetch(user(), [image])

    @pytest.mark.parametrize(
        ("changed", "word"),
        [
            ({"accelerator_sha512": "0" * 128}, "one of them was changed"),
            (
                {"accelerator_function_id": bitstream_files.OTHER},
                "the file itself",
            ),
            (
                {"accelerator_interface_id": bitstream_files.OTHER},
                "the file itself",
            ),
        ],
    )
    def test_properties_that_contradict_the_content(
        self,
        glance: glances.Glance,
        make: Make,
        tmp_path: Path,
        changed: dict[str, str],
        word: str,
    ) -> None:
        with pytest.raises(errors.BitstreamError, match=word):
            make().fetch(user(), [add(glance, **changed)])
        assert not list_cached(tmp_path)

    def test_a_file_cut_off_before_it_was_uploaded(
        self, glance: glances.Glance, make: Make, tmp_path: Path
    ) -> None:
        with pytest.raises(errors.BitstreamError, match="damaged"):
            make().fetch(user(), [add(glance, CONTENT[:100])])
        assert not list_cached(tmp_path)

    def test_an_image_of_a_stranger(
        self, glance: glances.Glance, make: Make
    ) -> None:
        image = add(glance)
        with pytest.raises(errors.BitstreamError, match="share the image"):
            make().fetch(user("stranger"), [image])

    @pytest.mark.parametrize(
        "image", ["", "a name", MISSING.replace("-", ""), "../" + MISSING]
    )
    def test_a_malformed_id(self, make: Make, image: str) -> None:
        with pytest.raises(errors.BitstreamError, match="openstack image"):
            make().fetch(user(), [image])
        assert make().read_cached([image]) == {}

    def test_an_image_that_is_missing(
        self, glance: glances.Glance, make: Make
    ) -> None:
        with pytest.raises(errors.BitstreamError, match="ImageNotFound"):
            make().fetch(user(), [MISSING])

    @pytest.mark.parametrize("change", ["delete", "deactivate"])
    def test_a_cached_image_is_checked_in_glance(
        self, glance: glances.Glance, make: Make, change: str
    ) -> None:
        image = add(glance)
        images = make()
        images.fetch(user(), [image])
        getattr(glance, change)(image)
        with pytest.raises(errors.BitstreamError):
            images.fetch(user(), [image])

    def test_a_cached_image_must_still_be_allowed(
        self, glance: glances.Glance, make: Make
    ) -> None:
        image = add(glance)
        make().fetch(user(), [image])
        images = make(owners=frozenset())
        assert images.read_cached([image]) == {}
        with pytest.raises(errors.BitstreamError, match="does not allow"):
            images.fetch(user(), [image])

    def test_an_image_in_use_is_not_evicted(
        self, glance: glances.Glance, make: Make
    ) -> None:
        images = make(limit=len(CONTENT) + 1000)
        image, other = add(glance), add(glance, b"b" * 2000)
        images.fetch(user(), [image])
        with pytest.raises(errors.BitstreamError, match="no room"):
            images.fetch(user(), [other], keep=[image])
        assert images.read_cached([image])
        images.fetch(user(), [other])
        assert not images.read_cached([image])
