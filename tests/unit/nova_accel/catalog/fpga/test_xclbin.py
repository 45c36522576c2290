# SPDX-License-Identifier: Apache-2.0
"""Headers of xclbin files are parsed, and malformed ones refused."""

import struct
import time
import tracemalloc
from collections.abc import Mapping, Sequence

import hypothesis
import pytest
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.catalog.fpga import xclbin

UUID = "5a3c1f0e6f1d4b6c8f0e0c3b1d5e7a90"
ONE = "862c7020a250293e32036f19956669e5"
TWO = "12c8fafb0632499db1c0c6676271b8a6"
NONE = "0" * 32
SHELL = "xilinx_u250_gen3x16_xdma_shell_4_1"
PR = 1


def make(
    sections: Sequence[tuple[int, bytes]] = ((xclbin.BITSTREAM, b"bits"),),
    uuid: str = UUID,
    interface: str = NONE,
    platform: bytes = SHELL.encode(),
    mode: int = PR,
) -> bytes:
    """Return an xclbin, laid out field by field as XRT's struct axlf."""
    table, body = b"", b""
    start = 456 + 40 * len(sections)
    for kind, data in sections:
        table += struct.pack(
            "<I16s4xQQ", kind, b"a name", start + len(body), len(data)
        )
        body += data + bytes(-len(data) % 8)
    head = b"xclbin2\0" + struct.pack("<i", -1) + b"\xff" * 28
    head += bytes(256) + struct.pack("<Q", 7)
    head += struct.pack("<QQQ", start + len(body), 1, 2)
    head += struct.pack("<HBBHH", 9, 2, 1, mode, 0)
    head += bytes.fromhex(interface) + platform.ljust(64, b"\0")
    head += bytes.fromhex(uuid) + b"debug.bin".ljust(16, b"\0")
    head += struct.pack("<I4x", len(sections))
    return head + table + body


def tree(
    nodes: Mapping[str, Mapping[str, bytes]], below: str = "interfaces"
) -> bytes:
    """Return a flattened devicetree with nodes below one of the root."""
    words: list[str] = []

    def begin(name: str) -> bytes:
        text = name.encode() + b"\0"
        return struct.pack(">I", 1) + text + bytes(-len(text) % 4)

    structure = begin("") + begin(below)
    for node, properties in nodes.items():
        structure += begin(node) + struct.pack(">I", 4)
        for name, value in properties.items():
            offset = len("".join(f"{w}\0" for w in words))
            words.append(name)
            structure += struct.pack(">III", 3, len(value), offset)
            structure += value + bytes(-len(value) % 4)
        structure += struct.pack(">I", 2)
    structure += struct.pack(">III", 2, 2, 9)
    strings = "".join(f"{w}\0" for w in words).encode()
    total = 56 + len(structure) + len(strings)
    return (
        struct.pack(
            ">10I",
            0xD00DFEED,
            total,
            56,
            56 + len(structure),
            40,
            17,
            16,
            0,
            len(strings),
            len(structure),
        )
        + bytes(16)
        + structure
        + strings
    )


def interfaces(*ids: str) -> bytes:
    return tree(
        {
            f"@{n}": {
                "interface_uuid": interface.encode() + b"\0",
                "other": b"x",
            }
            for n, interface in enumerate(ids)
        }
    )


def test_a_header_has_uuid_platform_and_interfaces() -> None:
    content = make(
        [(xclbin.PARTITION_METADATA, interfaces(ONE, TWO)), (0, b"bits")]
    )
    assert xclbin.parse(content) == xclbin.XclbinHeader(
        uuid=UUID, platform=SHELL, interfaces=(ONE, TWO), length=len(content)
    )


def test_interfaces_are_parsed_in_any_spelling() -> None:
    dashed = "862C7020-A250-293E-3203-6F19956669E5"
    content = make([(20, interfaces(dashed, ONE)), (19, b"pdi")])
    assert xclbin.parse(content).interfaces == (ONE,)


def test_without_metadata_the_header_has_the_interface() -> None:
    assert xclbin.parse(make(interface=TWO)).interfaces == (TWO,)
    elsewhere = tree({"@0": {"interface_uuid": ONE.encode()}}, "addresses")
    content = make([(20, elsewhere), (0, b"bits")], interface=TWO)
    assert xclbin.parse(content).interfaces == (TWO,)


@pytest.mark.parametrize(
    "platform", [b"xilinx:u280:xdma:201920.3", b"xilinx_u280_xdma_201920_3"]
)
def test_old_shells_are_identified_by_name(platform: bytes) -> None:
    header = xclbin.parse(make(platform=platform))
    assert header.interfaces == ()
    assert header.fits == ("xilinx_u280_xdma_201920_3",)


def test_interfaces_precede_the_name() -> None:
    assert xclbin.parse(make(interface=ONE)).fits == (ONE,)
    assert xclbin.parse(make(platform=b"")).fits == ()


def test_bytes_after_the_end_are_ignored() -> None:
    content = make()
    assert xclbin.parse(content + b"a signature").length == len(content)


def test_an_absent_section_is_ignored() -> None:
    content = bytearray(make([(20, b""), (0, b"bits")]))
    struct.pack_into("<QQ", content, 456 + 24, 0, 0)
    assert xclbin.parse(bytes(content)).uuid == UUID


def patched(offset: int, form: str, value: int) -> bytes:
    content = bytearray(make([(20, interfaces(ONE)), (0, b"bits")]))
    struct.pack_into(form, content, offset, value)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "magic"),
        (b"xclbin1\0" + make()[8:], "magic"),
        (b"xclbin2\0", "at least 456 bytes"),
        (make()[:-1], "got"),
        (patched(304, "<Q", 455), "455 bytes"),
        (patched(304, "<Q", 1 << 63), "bytes as it says"),
        (patched(448, "<I", 0x10001), "sections"),
        (patched(448, "<I", 100), "table"),
        (patched(456 + 24, "<Q", 0), "section 0"),
        (patched(456 + 24, "<Q", 1 << 62), "section 0"),
        (patched(456 + 72, "<Q", 1 << 62), "section 1"),
        (make(uuid=NONE), "zero"),
        (make(mode=0), "flat"),
        (make(mode=4), "emulation"),
        (make([]), "section with a bitstream"),
        (make(platform=b"\xff\xfe"), "letters, digits"),
        (make(platform=b"u250\n\x1b[2Jforged"), "letters, digits"),
        (make(platform=b"u250;reboot"), "letters, digits"),
        (make([(20, b"short"), (0, b"b")]), "a header"),
        (make([(20, bytes(64)), (0, b"b")]), "d00dfeed"),
        (make([(20, interfaces("nonsense")), (0, b"b")]), "nonsense"),
        (make([(20, interfaces(ONE)[:-30]), (0, b"b")]), "d00dfeed"),
    ],
)
def test_an_incomplete_xclbin_is_refused(content: bytes, word: str) -> None:
    with pytest.raises(errors.MalformedError, match=word):
        xclbin.parse(content)


@pytest.mark.parametrize(
    ("place", "value", "word"),
    [
        (56, 7, "token at 56"),  # no such token
        (8, 1 << 31, "an end"),  # the structure begins behind the end
        (12, 1 << 31, "names with an end"),
        (-1, 0x7FFFFFFF, "a property inside it"),
    ],
)
def test_a_damaged_tree_is_refused(place: int, value: int, word: str) -> None:
    blob = bytearray(interfaces(ONE))
    if place < 0:
        place = blob.index(struct.pack(">II", 3, 33)) + 4
    struct.pack_into(">I", blob, place, value)
    with pytest.raises(errors.MalformedError, match=word):
        xclbin.parse(make([(20, bytes(blob)), (0, b"b")]))


def test_a_too_deep_tree_is_refused() -> None:
    blob = bytearray(interfaces(ONE))
    blob += bytes(-len(blob) % 4) + struct.pack(">II", 1, 0) * 100
    struct.pack_into(">I", blob, 4, len(blob))
    struct.pack_into(">I", blob, 8, len(blob) - 800)
    with pytest.raises(errors.MalformedError, match="64 nodes"):
        xclbin.parse(make([(20, bytes(blob)), (0, b"b")]))


WHOLE = make([(20, interfaces(ONE, TWO)), (0, b"bits" * 8)], interface=ONE)


@hypothesis.given(
    st.lists(
        st.tuples(
            st.integers(0, len(WHOLE) - 1),
            st.binary(min_size=1, max_size=8),
        ),
        max_size=4,
    ),
    st.integers(0, len(WHOLE)),
)
def test_a_damaged_file_is_malformed_or_parsed(
    damage: list[tuple[int, bytes]], end: int
) -> None:
    content = bytearray(WHOLE)
    for place, data in damage:
        content[place : place + len(data)] = data
    try:
        header = xclbin.parse(bytes(content[:end]))
    except errors.MalformedError:
        return
    assert header.length <= end
    assert len(header.uuid) == 32


@hypothesis.given(st.binary(max_size=600))
def test_any_content_is_malformed_or_parsed(tail: bytes) -> None:
    for content in (tail, xclbin.MAGIC + tail):
        try:
            xclbin.parse(content)
        except errors.MalformedError:
            continue


@hypothesis.given(st.binary(max_size=400))
def test_any_metadata_are_malformed_or_parsed(tail: bytes) -> None:
    start = interfaces(ONE)[:56]
    for blob in (tail, start + tail):
        try:
            xclbin.parse(make([(20, blob), (0, b"b")]))
        except errors.MalformedError:
            continue


def hostile(kinds: int, size: int) -> bytes:
    """Return an xclbin whose sections of many kinds are the same bytes."""
    whole = make([(kind, b"") for kind in range(kinds)])
    content = bytearray(whole + bytes(size))
    struct.pack_into("<Q", content, 304, len(content))
    for number in range(kinds):
        place = 456 + 40 * number + 24
        struct.pack_into("<QQ", content, place, len(whole), size)
    return bytes(content)


def long_names() -> bytes:
    """Return partition metadata whose properties share one name of 0.5 MB."""
    blob = bytearray(struct.pack(">III", 3, 0, 0) * 40_000)
    head = struct.pack(
        ">10I", 0xD00DFEED, 1 << 20, 40, 40 + len(blob), 40, 17, 16, 0, 0, 0
    )
    name = b"n" * ((1 << 20) - len(head) - len(blob) - 1) + b"\0"
    return head + bytes(blob) + name


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (hostile(512, 4 << 20), "sections that do not overlap"),
        (hostile(2000, 1 << 20), "at most 1024 sections"),
        (
            make([(20, long_names()), (0, bytes(1 << 20))]),
            "of at most 255 bytes",
        ),
    ],
    ids=["overlap", "number", "names"],
)
def test_a_hostile_xclbin_is_refused_in_little_time_and_memory(
    content: bytes, word: str
) -> None:
    tracemalloc.start()
    begin = time.process_time()
    try:
        with pytest.raises(errors.MalformedError, match=word):
            xclbin.parse(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - begin < 1
    # The caller has the content itself: once more is twice.
    assert peak < len(content)


def test_sections_may_be_adjacent_and_empty() -> None:
    content = make([(7, b""), (20, interfaces(ONE)), (8, b""), (0, b"bits")])
    assert xclbin.parse(content).interfaces == (ONE,)
