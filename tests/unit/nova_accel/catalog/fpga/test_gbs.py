# SPDX-License-Identifier: Apache-2.0
"""Headers of green bitstreams are parsed, and malformed ones refused."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.catalog.fpga import gbs
from tests.support.fpga import bitstream_files

WHOLE = bitstream_files.gbs()
START = len(gbs.MAGIC) + 4


def test_a_header_has_function_interface_and_offset() -> None:
    header = gbs.parse(WHOLE)
    assert header.functions == (bitstream_files.FUNCTION,)
    assert header.interface == bitstream_files.INTERFACE
    assert WHOLE[header.offset :] == b"bits" * 1000
    assert gbs.payload_offset(WHOLE) == header.offset


def test_all_functions_are_listed() -> None:
    content = bitstream_files.gbs(
        bitstream_files.metadata(
            bitstream_files.FUNCTION, bitstream_files.OTHER
        )
    )
    assert gbs.parse(content).functions == (
        bitstream_files.FUNCTION,
        bitstream_files.OTHER,
    )


def test_a_zero_after_the_metadata_is_ignored() -> None:
    text = WHOLE[START : gbs.payload_offset(WHOLE)]
    assert (
        gbs.parse(bitstream_files.gbs(text + b"\0")).interface
        == bitstream_files.INTERFACE
    )


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "magic"),
        (b"XeonFPGA\xb7GBSv002" + bytes(100), "magic"),
        (WHOLE[: START - 1], "cut off"),
        (WHOLE[: START + 10], "cut off"),
        (WHOLE[: gbs.payload_offset(WHOLE)], "cut off"),
        (gbs.MAGIC + struct.pack("<I", 0xFFFFFFFF) + bytes(99), "at most"),
        (bitstream_files.gbs(b"{"), "JSON"),
        (bitstream_files.gbs(b"\xff\xfe"), "JSON"),
        (bitstream_files.gbs(b"[" * 16_000), "JSON"),
        (bitstream_files.gbs(b"[" * 100_000), "at most"),
        (bitstream_files.gbs(b"9" * 10_000), "JSON"),
        (bitstream_files.gbs([]), "object"),
        (bitstream_files.gbs({"afu-image": 1}), "afu-image"),
        (
            bitstream_files.gbs(bitstream_files.metadata()),
            "accelerator-clusters",
        ),
        (
            bitstream_files.gbs(
                bitstream_files.metadata(
                    changed={"accelerator-clusters": {"a": 1}}
                )
            ),
            "accelerator-clusters",
        ),
        (
            bitstream_files.gbs(
                bitstream_files.metadata(changed={"accelerator-clusters": [1]})
            ),
            "objects",
        ),
        (
            bitstream_files.gbs(
                bitstream_files.metadata(
                    changed={"accelerator-clusters": [{}]}
                )
            ),
            "accelerator-type-uuid",
        ),
        (
            bitstream_files.gbs(
                bitstream_files.metadata(
                    bitstream_files.OTHER, changed={"interface-uuid": 7}
                )
            ),
            "interface-uuid",
        ),
        (
            bitstream_files.gbs(
                bitstream_files.metadata(
                    bitstream_files.OTHER, changed={"interface-uuid": "69528"}
                )
            ),
            "interface-uuid",
        ),
    ],
)
def test_an_incomplete_file_is_refused(content: bytes, word: str) -> None:
    with pytest.raises(errors.MalformedError, match=word):
        gbs.parse(content)


@given(st.binary(max_size=200))
def test_any_content_after_the_magic_is_refused(tail: bytes) -> None:
    with pytest.raises(errors.MalformedError):
        gbs.parse(gbs.MAGIC + tail)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "afu-image",
                    "accelerator-clusters",
                    "interface-uuid",
                    "accelerator-type-uuid",
                ]
            ),
            some,
        )
    ),
    max_leaves=12,
)


@given(values)
def test_any_metadata_are_parsed_or_refused(text: object) -> None:
    try:
        metadata = gbs.parse(bitstream_files.gbs(text))
    except errors.MalformedError:
        return
    assert metadata.functions


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3))
def test_a_damaged_file_is_refused_or_parsed(place: int, patch: bytes) -> None:
    content = WHOLE[:place] + patch + WHOLE[place + len(patch) :]
    try:
        metadata = gbs.parse(content)
    except errors.MalformedError:
        return
    assert len(metadata.interface) == 32


def test_hostile_metadata_is_refused_in_little_memory() -> None:
    content = bitstream_files.gbs(b"[" + b"[]," * 300_000 + b"[]]")
    tracemalloc.start()
    try:
        with pytest.raises(errors.MalformedError, match="at most"):
            gbs.parse(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The content is in memory once already.
    assert peak < len(content)
