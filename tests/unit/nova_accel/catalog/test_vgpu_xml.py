# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vgpuConfig.xml is parsed, and other files are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.catalog import mdev_names, vgpu_xml
from nova_accel.model import pci
from tests.hosts import vgpu_config

L40S = pci.PciFunction(
    address=pci.parse_address("0000:3d:00.0"),
    vendor="10de",
    product="26b9",
    class_code=0x030200,
    subsystem_vendor="10de",
    subsystem_product="1851",
)
# The first lines of release 535's table, without the unused elements.
EXCERPT = """<?xml version="1.0" encoding="utf-8"?>
<vgpuconfig>
  <version>1.0</version>
  <vgpuType id="1155" name="NVIDIA L40S-24Q" class="Quadro">
    <devId vendorId="0x10de" deviceId="0x26B9" subsystemId="0x1893"/>
    <profileSize>0x600000000</profileSize>
    <framebuffer>0x5c0000000</framebuffer>
    <display width="7680" height="4320"/>
  </vgpuType>
  <vgpuType id="35" name="GRID M10-0B" class="NVS">
    <profileSize>0x20000000</profileSize>
    <framebuffer>0x1A000000</framebuffer>
  </vgpuType>
  <pgpu fractionalMultiVgpu="1" hostVgpuMode="sriov">
    <devId vendorId="0x10de" deviceId="0x26B9" subsystemVendorId="0x10de"
     subsystemId="0x0"/>
    <supportedVgpu vgpuId="1155">
      <maxVgpus>2</maxVgpus>
    </supportedVgpu>
  </pgpu>
</vgpuconfig>
"""


def test_types_are_found_by_number() -> None:
    table = vgpu_xml.parse(EXCERPT)
    assert table.names == {"1155": "L40S-24Q", "35": "M10-0B"}
    assert table.facts("1155", L40S) == mdev_names.TypeDescription(
        memory_mb=24576, max_instances=2
    )
    # A size belongs to the type, a limit to the card.
    assert table.facts("35", L40S) == mdev_names.TypeDescription(memory_mb=512)
    assert table.facts("7", L40S) == mdev_names.TypeDescription()
    assert table.facts(None, L40S) == mdev_names.TypeDescription()


def test_a_row_for_the_board_precedes_a_row_for_any_board() -> None:
    table = vgpu_xml.parse(
        vgpu_config.text(
            {"1155": "NVIDIA L40S-24Q"},
            cards=[
                ("26b9", "0", {"1155": 2}),
                ("26b9", "1851", {"1155": 1}),
                ("26ba", "0", {"1155": 7}),
            ],
        )
    )
    assert table.facts("1155", L40S).max_instances == 1


def test_hexadecimal_numbers_and_a_document_type_are_read() -> None:
    text = vgpu_config.text({"0x483": "NVIDIA L40S-24Q"}).replace(
        "<vgpuconfig>",
        '<!DOCTYPE vgpu SYSTEM "http://localhost/no.dtd"><vgpuconfig>',
    )
    assert vgpu_xml.parse(text).names == {"1155": "L40S-24Q"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "XML"),
        ("<vgpuconfig>", "XML"),
        (EXCERPT[:-20], "XML"),
        ("<html><body/></html>", "elements vgpuType"),
        (
            '<!DOCTYPE v [<!ENTITY a "b">]><v>&a;</v>',
            "no entities",
        ),
        (EXCERPT.replace('id="35"', ""), "a number and a name"),
        (EXCERPT.replace('id="35"', 'id="none"'), "a number and a name"),
        (EXCERPT.replace('"GRID M10-0B"', '" "'), "a number and a name"),
        (EXCERPT.replace('id="35"', 'id="1155"'), "each number once"),
    ],
)
def test_other_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(errors.MalformedError, match=reason):
        vgpu_xml.parse(text)


@pytest.mark.parametrize(
    "odd",
    ["", "lots", "-1", "0x", "1e3", "9" * 5000, f"0x{'f' * 5000}"],
    ids=lambda odd: odd[:4],
)
def test_odd_sizes_and_limits_are_unknown(odd: str) -> None:
    text = EXCERPT.replace("0x600000000", odd).replace(">2<", f">{odd}<")
    description = vgpu_xml.parse(text).facts("1155", L40S)
    assert description == mdev_names.TypeDescription()


@given(st.text(alphabet='<>/="&;! vgpuTypeid09', max_size=80))
def test_any_text_is_parsed_or_malformed(text: str) -> None:
    with pytest.raises(errors.MalformedError):
        vgpu_xml.parse(text)


def test_a_table_of_another_release_is_a_problem() -> None:
    table = vgpu_xml.parse(EXCERPT)
    assert table.find_mismatch({"1155": "L40S-24Q", "9": "L40S-1Q"}) == ""
    assert "'L40S-24Q'" in table.find_mismatch({"1155": "L40S-48Q"})
