# SPDX-License-Identifier: Apache-2.0
"""Images and files are accepted only if they agree with each other."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.catalog.fpga import bitstreams, gbs, xclbin
from tests.support.fpga import bitstream_files, card
from tests.unit.nova_accel.catalog.fpga import test_xclbin

DASHED = "D8424DC4-A4A3-C413-F89E-433683F9040B"
SHELL = test_xclbin.SHELL
GREEN = bitstream_files.gbs()
# An xclbin of a shell with interfaces, and one of a shell without.
STAGED = test_xclbin.make(
    [
        (xclbin.PARTITION_METADATA, test_xclbin.interfaces(test_xclbin.ONE)),
        (xclbin.BITSTREAM, b"bits"),
    ]
)
PLAIN = test_xclbin.make()


def parsed(**changed: Any) -> bitstreams.ImageRequirement:
    return bitstreams.parse_image(
        bitstream_files.facts(**changed), bitstream_files.MIB
    )


def named(**changed: str) -> bitstreams.ImageRequirement:
    return parsed(named=bitstream_files.properties(**changed))


def without(name: str) -> dict[str, str]:
    properties = bitstream_files.properties()
    del properties[name]
    return properties


def requirement(content: bytes, **changed: Any) -> bitstreams.ImageRequirement:
    default = bitstreams.ImageRequirement(
        function=bitstream_files.FUNCTION,
        interface=bitstream_files.INTERFACE,
        vendor="intel",
        sha512=bitstream_files.digest(content),
        size=len(content),
    )
    return dataclasses.replace(default, **changed)


class TestAllowed:
    @pytest.mark.parametrize(
        ("images", "owners"),
        [
            ([bitstream_files.IMAGE], []),
            ([bitstream_files.IMAGE.upper()], []),
            ([], [bitstream_files.OWNER]),
            ([], ["5f705af5-e3f1-4b6c-9dd8-c1a0f7c0ffee"]),
        ],
    )
    def test_an_image_is_allowed_by_id_or_by_project(
        self, images: list[str], owners: list[str]
    ) -> None:
        bitstreams.check_allowed(bitstream_files.facts(), images, owners)

    def test_nothing_is_allowed_by_default(self) -> None:
        with pytest.raises(
            errors.BitstreamError,
            match=f"bitstream_images.*{bitstream_files.OWNER}",
        ) as caught:
            bitstreams.check_allowed(bitstream_files.facts(), [], ["another"])
        assert caught.value.image == bitstream_files.IMAGE

    def test_an_image_without_owner_is_not_of_an_empty_project(self) -> None:
        with pytest.raises(errors.BitstreamError):
            bitstreams.check_allowed(bitstream_files.facts(owner=""), [], [""])


class TestImage:
    def test_properties_give_the_requirement(self) -> None:
        content = b"some bits"
        assert parsed(content=content) == requirement(content)

    @pytest.mark.parametrize(
        "spelled", [DASHED, DASHED.lower(), f" {bitstream_files.FUNCTION} "]
    )
    def test_ids_are_parsed_in_any_spelling(self, spelled: str) -> None:
        image = named(accelerator_function_id=spelled)
        assert image.function == bitstream_files.FUNCTION

    @pytest.mark.parametrize(
        ("spelled", "meant"),
        [
            (SHELL.upper(), SHELL),
            ("xilinx:u250:xdma:201830.1", "xilinx_u250_xdma_201830_1"),
        ],
    )
    def test_a_shell_is_identified_by_its_name(
        self, spelled: str, meant: str
    ) -> None:
        image = named(accelerator_interface_id=spelled)
        assert image.interface == meant

    @pytest.mark.parametrize(
        ("vendor", "meant"),
        [
            ("intel", "intel"),
            ("Intel", "intel"),
            ("8086", "intel"),
            ("0x8086", "intel"),
            ("0x10EE", "xilinx"),
            ("1e24", "1e24"),
        ],
    )
    def test_vendors_are_parsed_by_name_or_id(
        self, vendor: str, meant: str
    ) -> None:
        assert named(accelerator_vendor=vendor).vendor == meant

    @pytest.mark.parametrize(
        "name",
        [bitstreams.FUNCTION, bitstreams.INTERFACE, bitstreams.VENDOR],
    )
    def test_a_missing_property_is_named_with_the_command(
        self, name: str
    ) -> None:
        with pytest.raises(
            errors.BitstreamError,
            match=f"openstack image set --property {name}=.*"
            f" {bitstream_files.IMAGE}",
        ):
            parsed(named=without(name))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            (bitstreams.FUNCTION, bitstream_files.FUNCTION[:-1]),
            (bitstreams.FUNCTION, "a name"),
            (bitstreams.FUNCTION, "../../etc/passwd"),
            (bitstreams.FUNCTION, "x" * 201),
            (bitstreams.INTERFACE, " "),
            (bitstreams.INTERFACE, "nothing\n"),
            (bitstreams.VENDOR, "0x80866"),
            (bitstreams.VENDOR, "in tel"),
            (bitstreams.SHA512, "00"),
            (bitstreams.SHA512, "z" * 128),
            (bitstreams.SHA512, ""),
        ],
    )
    def test_a_malformed_property_is_named(
        self, name: str, value: str
    ) -> None:
        if value == "nothing\n":
            assert named(**{name: value}).interface == "nothing"
            return
        with pytest.raises(errors.BitstreamError, match=name):
            parsed(
                named=bitstream_files.properties(**{name: value}),
                hash_algo="md5",
            )

    def test_the_digest_of_glance_is_used(self) -> None:
        assert parsed(content=b"x").sha512 == bitstream_files.digest(b"x")

    def test_a_digest_other_than_sha512_is_refused(self) -> None:
        with pytest.raises(errors.BitstreamError, match=bitstreams.SHA512):
            parsed(hash_algo="sha256")
        with pytest.raises(errors.BitstreamError, match=bitstreams.SHA512):
            parsed(hash_value="")

    def test_the_digest_of_the_property_is_used(self) -> None:
        digest = bitstream_files.digest(b"bits")
        image = parsed(
            hash_algo="",
            hash_value="",
            named=bitstream_files.properties(
                accelerator_sha512=digest.upper()
            ),
        )
        assert image.sha512 == digest

    def test_both_digests_must_agree(self) -> None:
        digest = bitstream_files.digest(b"bits")
        assert named(accelerator_sha512=digest).sha512 == digest
        with pytest.raises(errors.BitstreamError, match="was changed"):
            named(accelerator_sha512=bitstream_files.digest(b"other"))

    @pytest.mark.parametrize(
        ("changed", "word"),
        [
            ({"status": "queued"}, "queued"),
            ({"status": "deactivated"}, "--activate"),
            ({"status": ""}, "no known state"),
            ({"size": 0}, "size"),
            ({"size": -1}, "size"),
            ({"size": bitstream_files.MIB + 1}, "bitstream_cache_mb"),
        ],
    )
    def test_only_a_complete_and_active_image_is_accepted(
        self, changed: dict[str, Any], word: str
    ) -> None:
        with pytest.raises(errors.BitstreamError, match=word):
            parsed(**changed)

    @given(
        st.dictionaries(
            st.sampled_from(
                [
                    bitstreams.FUNCTION,
                    bitstreams.INTERFACE,
                    bitstreams.VENDOR,
                    bitstreams.SHA512,
                ]
            ),
            st.text(max_size=130)
            | st.from_regex(r"[0-9a-fA-F-]{1,140}", fullmatch=True),
        ),
        st.text(max_size=8) | st.just("sha512"),
        st.text(max_size=130) | st.just("0" * 128),
        st.integers(),
    )
    def test_any_image_is_parsed_or_refused(
        self, properties: dict[str, str], algo: str, value: str, size: int
    ) -> None:
        try:
            image = parsed(
                named=properties, hash_algo=algo, hash_value=value, size=size
            )
        except errors.BitstreamError as error:
            assert error.image == bitstream_files.IMAGE
            return
        assert 0 < image.size <= bitstream_files.MIB
        assert len(image.sha512) == 128


class TestContent:
    def test_a_file_of_intel_agrees(self) -> None:
        bitstreams.check_content(
            bitstream_files.IMAGE, requirement(GREEN), GREEN
        )

    @pytest.mark.parametrize(
        ("content", "interface"), [(STAGED, test_xclbin.ONE), (PLAIN, SHELL)]
    )
    def test_a_file_of_amd_agrees(
        self, content: bytes, interface: str
    ) -> None:
        bitstreams.check_content(
            bitstream_files.IMAGE,
            requirement(
                content,
                vendor="xilinx",
                function=test_xclbin.UUID,
                interface=interface,
            ),
            content,
        )

    def test_for_a_raw_file_only_the_properties_count(self) -> None:
        bitstreams.check_content(
            bitstream_files.IMAGE, requirement(b"raw"), b"raw"
        )

    @pytest.mark.parametrize(
        ("changed", "name"),
        [
            ({"function": bitstream_files.OTHER}, bitstreams.FUNCTION),
            ({"interface": bitstream_files.OTHER}, bitstreams.INTERFACE),
            ({"vendor": "xilinx"}, bitstreams.VENDOR),
        ],
    )
    def test_a_file_that_differs_from_its_properties_is_refused(
        self, changed: dict[str, str], name: str
    ) -> None:
        with pytest.raises(errors.BitstreamError, match=f"--property {name}"):
            bitstreams.check_content(
                bitstream_files.IMAGE, requirement(GREEN, **changed), GREEN
            )

    @pytest.mark.parametrize("content", [GREEN, STAGED, b"raw bits"])
    def test_a_file_shorter_than_the_image_is_refused(
        self, content: bytes
    ) -> None:
        with pytest.raises(errors.BitstreamError, match="cut off"):
            bitstreams.check_content(
                bitstream_files.IMAGE, requirement(content), content[:-1]
            )

    @pytest.mark.parametrize("content", [GREEN[:40], STAGED[:-8]])
    def test_a_file_shorter_than_its_header_says_is_refused(
        self, content: bytes
    ) -> None:
        with pytest.raises(errors.BitstreamError, match="damaged"):
            bitstreams.check_content(
                bitstream_files.IMAGE, requirement(content), content
            )

    @given(st.sampled_from([gbs.MAGIC, xclbin.MAGIC, b""]), st.binary())
    def test_any_content_of_another_size_is_refused(
        self, magic: bytes, tail: bytes
    ) -> None:
        content = magic + tail
        with pytest.raises(errors.BitstreamError):
            bitstreams.check_content(
                bitstream_files.IMAGE,
                requirement(content, size=len(content) + 1),
                content,
            )
        if magic:
            with pytest.raises(errors.BitstreamError):
                bitstreams.describe_file("/blank", content)


class TestLocalFile:
    @pytest.mark.parametrize(
        ("content", "vendor", "function", "interface"),
        [
            (
                GREEN,
                "intel",
                bitstream_files.FUNCTION,
                bitstream_files.INTERFACE,
            ),
            (STAGED, "xilinx", test_xclbin.UUID, test_xclbin.ONE),
            (PLAIN, "xilinx", test_xclbin.UUID, SHELL),
        ],
    )
    def test_a_local_file_is_described_by_its_header(
        self, content: bytes, vendor: str, function: str, interface: str
    ) -> None:
        assert bitstreams.describe_file(
            "/etc/nova/blank", content
        ) == model.Bitstream(
            name="/etc/nova/blank",
            vendor=vendor,
            path="/etc/nova/blank",
            function=function,
            interface=interface,
            sha512=bitstream_files.digest(content),
            size=len(content),
        )

    def test_a_raw_file_is_refused(self) -> None:
        with pytest.raises(errors.BitstreamError, match="/blank: it does not"):
            bitstreams.describe_file("/blank", b"raw")

    def test_a_file_without_a_shell_is_refused(self) -> None:
        content = test_xclbin.make(platform=b"")
        with pytest.raises(errors.BitstreamError, match="shell"):
            bitstreams.describe_file("/blank", content)


class TestMismatch:
    def region(self, **changed: Any) -> model.Region:
        region = model.Region(
            card=card.CARD,
            number=0,
            function=None,
            interfaces=(bitstream_files.OTHER, DASHED, card.INTERFACE.upper()),
            is_programmable=True,
        )
        return dataclasses.replace(region, **changed)

    def test_a_fitting_bitstream_is_accepted(self) -> None:
        for interface in (card.INTERFACE, bitstream_files.FUNCTION):
            bitstream = card.bitstream(interface=interface)
            assert not bitstreams.explain_mismatch(
                bitstream, self.region(), "8086"
            )

    @pytest.mark.parametrize(
        ("changed", "vendor", "word"),
        [
            ({"is_programmable": False}, "8086", "can't be programmed"),
            ({}, "10ee", "a card of xilinx"),
            (
                {"interfaces": (bitstream_files.OTHER,)},
                "8086",
                bitstream_files.OTHER,
            ),
            ({"interfaces": ()}, "8086", "none that can be read"),
        ],
    )
    def test_a_mismatch_is_explained(
        self, changed: dict[str, Any], vendor: str, word: str
    ) -> None:
        mismatch = bitstreams.explain_mismatch(
            card.bitstream(), self.region(**changed), vendor
        )
        assert word in mismatch


def test_the_payload_follows_intels_header() -> None:
    assert bytes(bitstreams.extract_payload(GREEN)) == b"bits" * 1000
    assert bitstreams.extract_payload(b"raw") == b"raw"
    assert bitstreams.extract_payload(STAGED) == STAGED
    with pytest.raises(errors.MalformedError):
        bitstreams.extract_payload(GREEN[:30])
