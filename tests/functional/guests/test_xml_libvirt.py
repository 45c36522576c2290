# SPDX-License-Identifier: Apache-2.0
"""Real libvirt accepts hostdev XML: its schema, its parser, QEMU's driver."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import libvirt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from nova_accel import model
from nova_accel.catalog import features
from nova_accel.model import flavors
from tests.support import examples, strategies
from tests.unit.virt_hooks.guest.test_hostdev import (
    CARD,
    FIRMWARE,
    MDEV,
    PLAIN,
    SCREEN,
    SECOND,
    TYPED,
    VF,
    WHOLE,
)
from tests.unit.virt_hooks.guest.topology import test_picture
from virt_hooks.guest import (
    connection,
    guest_pci,
    hostdev,
    hypervisor,
    nodedev,
)
from virt_hooks.guest.topology import (
    guest_buses,
    host_tree,
    picture,
    port_windows,
)

SCHEMAS = Path("/usr/share/libvirt/schemas")
VERSION = features.parse_number(libvirt.getVersion())
HOST = hypervisor.Hypervisor(libvirt=VERSION)
# One connection serves all examples of a test.
SHARED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples.examples(25),
)
VNC = '<graphics type="vnc"/>'
# As Nova writes them for hot-plug: ports without an index.
NOVA_PORTS = '<controller type="pci" index="0" model="pcie-root"/>' + (
    '<controller type="pci" model="pcie-root-port"/>' * 3
)
NIC = '<interface type="user"><model type="virtio"/></interface>'
DISKS = "".join(
    f'<disk type="file"><source file="/x/{name}"/>'
    f'<target dev="{name}" bus="virtio"/></disk>'
    for name in ("vda", "vdb", "vdc")
)


def domain(machine: str, *devices: str, kind: str = "qemu") -> str:
    """Return a domain; libvirt chooses a machine that is not named."""
    named = f' machine="{machine}"' if machine else ""
    return (
        f'<domain type="{kind}"><name>guest</name><memory>1048576</memory>'
        f'<os><type arch="x86_64"{named}>hvm</type></os>'
        f"<devices>{''.join(devices)}</devices></domain>"
    )


def build_domain(
    machine: str,
    *claims: model.Claim,
    options: flavors.Options = PLAIN,
    beside: tuple[str, ...] = (),
    kind: str = "qemu",
) -> str:
    """Return a domain with the devices of some claims."""
    bare = domain(machine, *beside, kind=kind)
    added = hostdev.plan_elements(
        claims, guest_pci.parse_guest(bare), options, HOST
    )
    return domain(machine, *beside, *added, kind=kind)


def schema(name: str) -> etree.RelaxNG:
    path = SCHEMAS / f"{name}.rng"
    if not path.exists():
        pytest.skip(f"{path}: libvirt's schemas are not installed")
    return etree.RelaxNG(etree.parse(path))


@pytest.fixture(scope="module")
def form() -> etree.RelaxNG:
    return schema("domain")


@pytest.fixture
def host() -> Iterator[libvirt.virConnect]:
    connected = libvirt.open("test:///default")
    yield connected
    connected.close()


def define(host: libvirt.virConnect, text: str) -> str:
    """Define a domain with validation; return libvirt's own XML of it."""
    flags = libvirt.VIR_DOMAIN_DEFINE_VALIDATE
    defined_domain = host.defineXMLFlags(text, flags)
    try:
        result: str = defined_domain.XMLDesc(0)
        return result
    finally:
        defined_domain.undefine()


def list_addresses(text: str) -> list[tuple[str, tuple[int, int, int]]]:
    """Return (multifunction, (bus, slot, function)) of each PCI address."""
    addresses = []
    for address in ElementTree.fromstring(text).iterfind(
        "./devices/*/address[@type='pci']"
    ):
        numbers = [int(address.get(n, ""), 16) for n in ("bus", "slot")]
        function = int(address.get("function", ""), 16)
        addresses.append(
            (address.get("multifunction", ""), (*numbers, function))
        )
    return addresses  # type: ignore[return-value]


ALL = pytest.mark.parametrize(
    ("claims", "options"),
    [
        ((MDEV,), PLAIN),
        ((MDEV, SECOND), SCREEN),
        ((MDEV, SECOND, WHOLE), FIRMWARE),
        ((MDEV,), flavors.Options(has_display=False)),
        ((WHOLE,), PLAIN),
        ((CARD,), PLAIN),
        ((CARD, VF, MDEV), flavors.Options(has_rom=False)),
        ((TYPED,), flavors.Options(has_rom=True)),
        ((TYPED, VF), PLAIN),
        pytest.param(
            (TYPED,),
            FIRMWARE,
            marks=pytest.mark.skipif(
                VERSION < features.DISPLAY.minimum(features.LIBVIRT),
                reason="this libvirt is older than displays of functions",
            ),
        ),
    ],
)


# -- the schema ------------------------------------------------------------


@ALL
@pytest.mark.parametrize("machine", ["q35", "pc"])
def test_domains_match_the_schema(
    form: etree.RelaxNG,
    claims: tuple[model.Claim, ...],
    options: flavors.Options,
    machine: str,
) -> None:
    text = build_domain(
        machine, *claims, options=options, beside=(VNC, NOVA_PORTS)
    )
    assert form.validate(etree.fromstring(text)), form.error_log
    wrong = text.replace('type="mdev"', 'type="edev"').replace(
        'managed="yes"', 'managed="maybe"'
    )
    if wrong != text:
        assert not form.validate(etree.fromstring(wrong))


@pytest.mark.parametrize("api", ["vfio-pci", "vfio-ccw", "vfio-ap"])
def test_every_mdev_model_is_valid(form: etree.RelaxNG, api: str) -> None:
    claim = dataclasses.replace(MDEV, device_api=api)
    assert form.validate(etree.fromstring(build_domain("", claim)))


@pytest.mark.parametrize(
    "parent", ["0000:3b:00.4", "mtty", "matrix", "0.0.0052"]
)
def test_a_node_device_is_valid(parent: str) -> None:
    (name, *_) = nodedev.parent_names(parent)
    text = nodedev.to_xml(name, "nvidia-222", MDEV.handle)
    form = schema("nodedev")
    assert form.validate(etree.fromstring(text)), form.error_log
    assert not form.validate(
        etree.fromstring(text.replace("<uuid>", "<uuid>x"))
    )


# -- libvirt's parser ------------------------------------------------------


@ALL
def test_libvirt_reads_the_same_devices(
    host: libvirt.virConnect,
    claims: tuple[model.Claim, ...],
    options: flavors.Options,
) -> None:
    text = build_domain(
        "pc", *claims, options=options, beside=(VNC,), kind="test"
    )
    bare = text.replace(' machine="pc"', "")
    use = connection.parse_hostdevs(define(host, bare))
    expected = {h for c in claims for h in (c.handle, *c.members)}
    assert use.mdevs | use.functions == expected


def test_libvirt_validates_domains(
    host: libvirt.virConnect,
) -> None:
    good = build_domain("", MDEV, kind="test")
    bad = good.replace('model="vfio-pci"', 'model="vfio-nothing"')
    define(host, good)
    with pytest.raises(libvirt.libvirtError, match=r"schema|unsupported"):
        define(host, bad)


@given(uuids=st.lists(strategies.uuids, min_size=1, max_size=6, unique=True))
@SHARED
def test_mdevs_are_read_back(
    host: libvirt.virConnect, uuids: list[str]
) -> None:
    claims = [dataclasses.replace(MDEV, handle=uuid) for uuid in uuids]
    text = build_domain("", *claims, kind="test")
    assert connection.parse_hostdevs(define(host, text)) == (
        connection.HostdevUse(mdevs=frozenset(uuids))
    )


@given(
    members=st.lists(
        strategies.pci_addresses, min_size=1, max_size=6, unique=True
    )
)
@SHARED
def test_functions_are_read_back(
    host: libvirt.virConnect, members: list[str]
) -> None:
    claim = dataclasses.replace(
        WHOLE, handle=members[0], members=tuple(members[1:])
    )
    text = build_domain("", claim, kind="test")
    use = connection.parse_hostdevs(define(host, text))
    assert use == connection.HostdevUse(functions=frozenset(members))
    assert all(use.holds(member) for member in members)


# -- QEMU's driver ---------------------------------------------------------


@ALL
@pytest.mark.parametrize("machine", ["q35", "pc"])
def test_qemu_driver_accepts_domains(
    qemu: libvirt.virConnect,
    claims: tuple[model.Claim, ...],
    options: flavors.Options,
    machine: str,
) -> None:
    define(
        qemu, build_domain(machine, *claims, options=options, beside=(VNC,))
    )


@pytest.mark.parametrize(
    ("machine", "beside"),
    [
        ("q35", (NOVA_PORTS, NIC, DISKS)),
        ("q35", (NIC, DISKS)),
        ("q35", ()),
        ("pc", (NIC, DISKS, VNC)),
        ("pc", ()),
    ],
)
def test_a_card_has_a_guest_slot_of_its_own(
    qemu: libvirt.virConnect, machine: str, beside: tuple[str, ...]
) -> None:
    other = dataclasses.replace(
        WHOLE, handle="0000:66:00.0", members=("0000:66:00.1",)
    )
    text = define(
        qemu, build_domain(machine, CARD, VF, other, MDEV, beside=beside)
    )
    places = [place for _, place in list_addresses(text)]
    assert len(set(places)) == len(places)
    places_by_bus: dict[str, list[tuple[int, int, int]]] = {}
    for element in ElementTree.fromstring(text).iterfind("./devices/hostdev"):
        source = element.find("./source/address")
        where = element.find("./address")
        assert source is not None
        assert where is not None
        numbers = [int(where.get(n, ""), 16) for n in ("bus", "slot")]
        function = int(where.get("function", ""), 16)
        places_by_bus.setdefault(source.get("bus", ""), []).append(
            (*numbers, function)  # type: ignore[arg-type]
        )
    for bus, functions in (("0x65", [0, 1, 2, 3]), ("0x66", [0, 1])):
        assert len({place[:2] for place in places_by_bus[bus]}) == 1
        assert [place[2] for place in places_by_bus[bus]] == functions
    slots = {
        place[:2]
        for bus_places in places_by_bus.values()
        for place in bus_places
    }
    assert len(slots) == 4


def test_qemu_command_line_names_the_devices(qemu: libvirt.virConnect) -> None:
    """A host without VFIO can't choose the driver: the test names it."""
    text = build_domain("q35", CARD, MDEV, options=FIRMWARE, beside=(VNC,))
    function = "<source><address domain"
    line = qemu.domainXMLToNative(
        "qemu-argv",
        text.replace(function, f'<driver name="vfio"/>{function}'),
    )
    for number in range(4):
        assert f'"host":"0000:65:00.{number}"' in line
    assert '"multifunction":true,"addr":"0x0"' in line
    assert f'"sysfsdev":"/sys/bus/mdev/devices/{MDEV.handle}"' in line
    assert '"display":"on","ramfb":true' in line


def test_qemu_command_line_disables_the_rom(
    qemu: libvirt.virConnect,
) -> None:
    text = build_domain("pc", WHOLE, options=flavors.Options(has_rom=False))
    line = qemu.domainXMLToNative(
        "qemu-argv",
        text.replace("<source>", '<driver name="vfio"/><source>'),
    )
    assert '"rombar":0' in line


def test_qemu_driver_refuses_a_display_without_graphics(
    qemu: libvirt.virConnect,
) -> None:
    """The library refuses it before: the rule is libvirt's."""
    text = build_domain("pc", MDEV, options=SCREEN, beside=(VNC,))
    with pytest.raises(libvirt.libvirtError, match="graphics device"):
        define(qemu, text.replace(VNC, ""))


# -- the host's PCIe topology -----------------------------------------------

CELLS = (
    '<vcpu>2</vcpu><cpu><numa><cell id="0" cpus="0" memory="524288"/>'
    '<cell id="1" cpus="1" memory="524288"/></numa></cpu>'
)
PORTS = 4
ROOT_PORTS = '<controller type="pci" index="0" model="pcie-root"/>' + "".join(
    f'<controller type="pci" index="{index}" model="pcie-root-port"/>'
    for index in range(1, PORTS + 1)
)


def build_mirror(
    devices: tuple[host_tree.HostDevice, ...],
    *beside: str,
    peers: host_tree.Peers = host_tree.NO_PEERS,
) -> tuple[picture.Picture, str]:
    """Return the picture of devices, and a domain with it."""
    drawn = picture.mirror(devices, {0: 0, 1: 1}, 1, PORTS + 1, peers=peers)
    hostdevs = "".join(
        f'<hostdev mode="subsystem" {source(handle)}'
        f'<address type="pci" bus="{place.bus}" slot="0"'
        f' function="{place.function}"'
        f' multifunction="{"on" if place.is_first else "off"}"/></hostdev>'
        for handle, place in drawn.places.items()
    )
    text = domain("q35", ROOT_PORTS, *drawn.to_xml(), *beside, hostdevs)
    return drawn, text.replace("<os>", f"{CELLS}<os>")


def source(handle: str) -> str:
    """Return the attributes and the source of a hostdev."""
    if "-" in handle:
        return (
            f'type="mdev" model="vfio-pci"><source><address uuid="{handle}"/>'
            "</source>"
        )
    bus, slot, function = handle[5:7], handle[8:10], handle[-1]
    return (
        'type="pci"><source><address domain="0x0000"'
        f' bus="0x{bus}" slot="0x{slot}" function="0x{function}"/></source>'
    )


@given(linked=test_picture.linked_guests())
@settings(SHARED, max_examples=examples.examples(1000))
def test_pictures_match_the_schema(
    form: etree.RelaxNG, linked: test_picture.Linked
) -> None:
    devices, peers = linked
    _, text = build_mirror(devices, peers=peers)
    assert form.validate(etree.fromstring(text)), form.error_log


@given(linked=test_picture.linked_guests())
@SHARED
def test_qemu_driver_keeps_each_bus_of_a_picture(
    qemu: libvirt.virConnect, linked: test_picture.Linked
) -> None:
    """libvirt adds no port, and the guest sees the buses as written."""
    devices, peers = linked
    drawn, text = build_mirror(devices, NIC, peers=peers)
    defined = define(qemu, text)
    buses = guest_buses.predict(defined)
    last = drawn.controllers[-1].index
    assert buses == {index: index for index in range(last + 1)}
    use = connection.parse_hostdevs(defined)
    assert use.functions | use.mdevs == drawn.places.keys()


def test_too_few_root_ports_are_recognized(qemu: libvirt.virConnect) -> None:
    """libvirt adds a port to bus 0, whose bus is that of the expander."""
    device = host_tree.HostDevice(
        ("pci0000:16", "0000:16:01.0"), "0000:17:00.0", "0000:17:00.0"
    )
    _, text = build_mirror((device,), *[NIC] * (PORTS + 2))
    defined = define(qemu, text)
    with pytest.raises(picture.PictureError, match=r"busNr 5 .* end at 7"):
        guest_buses.check(defined)
    renumbered = define(qemu, guest_buses.renumber(defined))
    guest_buses.check(renumbered)
    assert len(list_addresses(renumbered)) == len(list_addresses(defined))


@pytest.mark.parametrize("legacy", ["e1000", "rtl8139"])
def test_a_conventional_device_is_recognized(
    qemu: libvirt.virConnect, legacy: str
) -> None:
    """libvirt adds a bridge for it, behind the last controller."""
    device = host_tree.HostDevice(
        ("pci0000:16", "0000:16:01.0"), "0000:17:00.0", "0000:17:00.0"
    )
    _, text = build_mirror((device,), NIC.replace("virtio", legacy))
    defined = define(qemu, text)
    with pytest.raises(picture.PictureError, match="busNr 5"):
        guest_buses.check(defined)
    guest_buses.check(define(qemu, guest_buses.renumber(defined)))


def test_a_gap_of_indexes_is_recognized(qemu: libvirt.virConnect) -> None:
    """libvirt fills it with root ports of bus 0."""
    device = host_tree.HostDevice(
        ("pci0000:16", "0000:16:01.0"), "0000:17:00.0", "0000:17:00.0"
    )
    late = '<controller type="pci" index="20" model="pcie-root-port"/>'
    _, text = build_mirror((device,), late)
    defined = define(qemu, text)
    root = ElementTree.fromstring(defined)
    ports = root.findall("./devices/controller[@model='pcie-root-port']")
    assert len(ports) > PORTS + 3
    with pytest.raises(picture.PictureError, match="busNr 5"):
        guest_buses.check(defined)
    guest_buses.check(define(qemu, guest_buses.renumber(defined)))


def test_windows_of_empty_ports_match_the_schema(
    qemu: libvirt.virConnect, form: etree.RelaxNG
) -> None:
    """libvirt keeps them when it attaches a device."""
    device = host_tree.HostDevice(
        ("pci0000:16", "0000:16:01.0"), "0000:17:00.0", "0000:17:00.0"
    )
    drawn, text = build_mirror((device,), NIC)
    windows = port_windows.Windows(memory=32 << 20, prefetchable=256 << 30)
    text = port_windows.reserve(
        text, dict.fromkeys(drawn.spare_ports, windows)
    )
    assert form.validate(etree.fromstring(text)), form.error_log
    defined = qemu.defineXML(text)
    try:
        defined.attachDeviceFlags(NIC, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        after = defined.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
    finally:
        defined.undefine()
    assert port_windows.parse(after) == {drawn.spare_ports[0]: windows}


VOLUME = (
    '<disk type="file"><source file="/x/vdx"/>'
    '<target dev="vdx" bus="virtio"/></disk>'
)


@pytest.mark.parametrize("element", [VOLUME, NIC])
def test_volumes_and_ports_are_attached_to_bus_0(
    qemu: libvirt.virConnect, element: str
) -> None:
    """As Nova attaches them, without an address."""
    device = host_tree.HostDevice(
        ("pci0000:16", "0000:16:01.0"), "0000:17:00.0", "0000:17:00.0"
    )
    _, text = build_mirror((device,), NIC)
    defined = qemu.defineXML(text)
    try:
        defined.attachDeviceFlags(element, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        after = defined.XMLDesc(0)
    finally:
        defined.undefine()
    guest_buses.check(after)
    buses = {bus for _, (bus, _, _) in list_addresses(after)}
    # The port of the device, and none of the spare ports of the expander.
    assert {6, 7} & buses == {6}
