# SPDX-License-Identifier: Apache-2.0
"""The XML of a guest that arrives with typed VFs in place of its mdevs."""

import pytest

pytest.importorskip("nova", reason="objects of Nova's libvirt driver")

from lxml import etree

from virt_hooks.guest import connection, libvirt_guest

MDEV = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
OTHER = "83c32df7-d52e-4ec1-9668-1f3c7e4df108"
FUNCTION = "0000:3e:00.4"


def hostdev(uuid: str, address: str) -> str:
    return (
        '<hostdev mode="subsystem" type="mdev" managed="no" model="vfio-pci"'
        f' display="on"><source><address uuid="{uuid}"/></source>'
        f'<alias name="hostdev0"/><address type="pci" bus="{address}"/>'
        "</hostdev>"
    )


def domain(*devices: str) -> str:
    return f"<domain><devices>{''.join(devices)}</devices></domain>"


def test_an_mdev_is_replaced_at_its_guest_address() -> None:
    text = domain(hostdev(MDEV, "0x01"), hostdev(OTHER, "0x02"))
    changed = libvirt_guest.replace_mdevs(text, {MDEV: FUNCTION})
    use = connection.parse_hostdevs(changed)
    assert use == connection.HostdevUse(
        mdevs=frozenset({OTHER}), functions=frozenset({FUNCTION})
    )
    first, second = etree.fromstring(changed).findall("./devices/hostdev")
    assert dict(first.attrib) == {
        "mode": "subsystem",
        "type": "pci",
        "managed": "no",
        "display": "on",
    }
    assert first.find("./address").get("bus") == "0x01"
    assert etree.tostring(second).decode() == hostdev(OTHER, "0x02")


class _Guest:
    """Nova's guest, with the XML of a test."""

    name = "instance-1"

    def get_xml_desc(self, dump_migratable: bool = False) -> str:
        del dump_migratable
        return domain(hostdev(MDEV, "0x01"))


def test_only_the_xml_of_a_migration_is_changed() -> None:
    guest = libvirt_guest.ChangedGuest(_Guest(), {MDEV: FUNCTION})
    assert guest.name == "instance-1"
    assert MDEV in guest.get_xml_desc()
    assert MDEV not in guest.get_xml_desc(dump_migratable=True)
