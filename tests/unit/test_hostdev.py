# SPDX-License-Identifier: Apache-2.0
"""Our XML in a real libvirt, which checks it against its own schema."""

import dataclasses
from collections.abc import Iterator
from xml.etree import ElementTree

import libvirt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_accel import errors, model, pci
from tests import strategies
from virt_hooks import connection, hostdev

# One connection serves all examples of a test.
SHARED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
MDEV = model.Claim(
    consumer="c",
    provider=strategies.ROOT_UUID,
    device="0000:3b:00.0",
    profile="P-1",
    slot="slot-0",
    parent="0000:3b:00.0",
    handle="83c32df7-d52e-4ec1-9668-1f3c7e4df107",
    technology="mdev",
    device_api="vfio-pci",
)
WHOLE = dataclasses.replace(
    MDEV,
    technology="pci",
    handle="0000:3b:00.0",
    device_api="",
)


@pytest.fixture
def host() -> Iterator[libvirt.virConnect]:
    connected = libvirt.open("test:///default")
    yield connected
    connected.close()


def domain(*hostdevs: str) -> str:
    return (
        '<domain type="test"><name>ours</name><memory>1024</memory>'
        '<os><type arch="x86_64">hvm</type></os>'
        f"<devices>{''.join(hostdevs)}</devices></domain>"
    )


def defined(host: libvirt.virConnect, *hostdevs: str) -> str:
    """Return what libvirt makes of them, after it validated them."""
    flags = libvirt.VIR_DOMAIN_DEFINE_VALIDATE
    found = host.defineXMLFlags(domain(*hostdevs), flags)
    try:
        text: str = found.XMLDesc(0)
        return text
    finally:
        found.undefine()


def test_libvirt_does_check_what_it_is_given(
    host: libvirt.virConnect,
) -> None:
    (good,) = hostdev.to_xml(MDEV)
    bad = good.replace('model="vfio-pci"', 'model="vfio-nothing"')
    defined(host, good)
    with pytest.raises(libvirt.libvirtError, match=r"schema|unsupported"):
        defined(host, bad)


@pytest.mark.parametrize("api", ["vfio-pci", "vfio-ccw", "vfio-ap"])
def test_every_device_api_becomes_a_model(
    host: libvirt.virConnect, api: str
) -> None:
    (xml,) = hostdev.to_xml(dataclasses.replace(MDEV, device_api=api))
    text = defined(host, xml)
    found = ElementTree.fromstring(text).find("./devices/hostdev")
    assert found is not None
    assert found.attrib == {
        "mode": "subsystem",
        "type": "mdev",
        "managed": "no",
        "model": api,
    }


def test_an_mdev_that_names_no_api_is_a_pci_device() -> None:
    (xml,) = hostdev.to_xml(dataclasses.replace(MDEV, device_api=""))
    assert 'model="vfio-pci"' in xml


@given(found=st.lists(strategies.uuids, min_size=1, max_size=6, unique=True))
@SHARED
def test_mdevs_come_back_as_they_were_written(
    host: libvirt.virConnect, found: list[str]
) -> None:
    claims = [dataclasses.replace(MDEV, handle=uuid) for uuid in found]
    text = defined(host, *(x for c in claims for x in hostdev.to_xml(c)))
    assert connection.parse_hostdevs(text) == connection.HostdevUse(
        mdevs=frozenset(found)
    )


@given(
    members=st.lists(
        strategies.pci_addresses, min_size=1, max_size=6, unique=True
    )
)
@SHARED
def test_functions_come_back_as_they_were_written(
    host: libvirt.virConnect, members: list[str]
) -> None:
    claim = dataclasses.replace(
        WHOLE, handle=members[0], members=tuple(members[1:])
    )
    xmls = hostdev.to_xml(claim)
    assert len(xmls) == len(members)
    use = connection.parse_hostdevs(defined(host, *xmls))
    assert use == connection.HostdevUse(functions=frozenset(members))
    assert all(use.holds(member) for member in members)


def test_functions_are_bound_and_given_back_by_libvirt(
    host: libvirt.virConnect,
) -> None:
    found = ElementTree.fromstring(defined(host, *hostdev.to_xml(WHOLE)))
    element = found.find("./devices/hostdev")
    assert element is not None
    assert (element.get("type"), element.get("managed")) == ("pci", "yes")


@given(st.text().filter(lambda t: not pci.is_address(t.strip().lower())))
def test_what_is_no_function_is_refused(text: str) -> None:
    claim = dataclasses.replace(WHOLE, handle=text)
    with pytest.raises(errors.MalformedError, match="PCI address"):
        hostdev.to_xml(claim)
