# SPDX-License-Identifier: Apache-2.0
"""Claims become hostdev elements of a guest's XML."""

import dataclasses
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.model import flavors, pci
from tests.support import strategies
from virt_hooks.guest import connection, guest_pci, hostdev, hypervisor

NEWEST = hypervisor.Hypervisor(
    libvirt=(12, 8, 0), qemu=(11, 1, 0), has_iommufd=True
)


def host_of(*libvirt: int) -> hypervisor.Hypervisor:
    """Return a host with this libvirt and the QEMU of Debian 12."""
    return hypervisor.Hypervisor(libvirt=libvirt, qemu=(7, 2, 0))


OLD, NEW = host_of(9, 0, 0), host_of(10, 3, 0)
PLAIN = flavors.Options()
SCREEN = flavors.Options(has_display=True)
FIRMWARE = flavors.Options(has_display=True, has_ramfb=True)
Q35 = guest_pci.Guest(machine="pc-q35-9.0", has_graphics=True)
I440FX = guest_pci.Guest(machine="pc", has_graphics=True)

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
SECOND = dataclasses.replace(
    MDEV, handle="83c32df7-d52e-4ec1-9668-1f3c7e4df108"
)
WHOLE = dataclasses.replace(
    MDEV, technology="passthrough", handle="0000:65:00.0", device_api=""
)
CARD = dataclasses.replace(
    WHOLE, members=("0000:65:00.1", "0000:65:00.2", "0000:65:00.3")
)
TYPED = dataclasses.replace(
    WHOLE, technology="vendor-vfio", handle="0000:3d:00.4", is_managed=False
)
VF = dataclasses.replace(WHOLE, technology="vf", handle="0000:9a:00.1")


def elements(
    *claims: model.Claim,
    machine: guest_pci.Guest = Q35,
    options: flavors.Options = PLAIN,
    host: hypervisor.Hypervisor = NEW,
) -> list[ElementTree.Element]:
    """Return the elements of some claims, parsed."""
    return [
        ElementTree.fromstring(xml)
        for xml in hostdev.plan_elements(claims, machine, options, host)
    ]


def hostdevs(
    *claims: model.Claim, **arguments: object
) -> list[dict[str, str]]:
    """Return the attributes of the hostdevs among them."""
    parsed = elements(*claims, **arguments)  # type: ignore[arg-type]
    return [dict(e.attrib) for e in parsed if e.tag == "hostdev"]


def guest_address(
    element: ElementTree.Element,
) -> tuple[int, int, int, str] | None:
    """Return bus, slot, function and multifunction flag in the guest."""
    address = element.find("./address")
    if address is None:
        return None
    bus, slot, function = (
        int(address.attrib[name], 16) for name in ("bus", "slot", "function")
    )
    return bus, slot, function, address.get("multifunction", "")


# -- attributes by technology ----------------------------------------------


@pytest.mark.parametrize("api", ["vfio-pci", "vfio-ccw", "vfio-ap"])
def test_every_device_api_is_a_model(api: str) -> None:
    (attributes,) = hostdevs(dataclasses.replace(MDEV, device_api=api))
    assert attributes == {
        "mode": "subsystem",
        "type": "mdev",
        "managed": "no",
        "model": api,
    }


def test_an_mdev_that_names_no_api_is_a_pci_device() -> None:
    (attributes,) = hostdevs(dataclasses.replace(MDEV, device_api=""))
    assert attributes["model"] == "vfio-pci"


@pytest.mark.parametrize(
    ("claim", "managed"), [(WHOLE, "yes"), (VF, "yes"), (TYPED, "no")]
)
def test_managed_depends_on_the_technology(
    claim: model.Claim, managed: str
) -> None:
    (attributes,) = hostdevs(claim)
    assert attributes == {
        "mode": "subsystem",
        "type": "pci",
        "managed": managed,
    }


def test_no_claims_need_no_elements() -> None:
    assert elements(options=SCREEN) == []


@given(st.text().filter(lambda t: not pci.is_address(t.strip().lower())))
def test_a_handle_that_is_no_function_is_refused(text: str) -> None:
    claim = dataclasses.replace(WHOLE, handle=text)
    with pytest.raises(errors.MalformedError, match="PCI address"):
        elements(claim)


@given(
    st.lists(strategies.pci_addresses, min_size=1, max_size=6, unique=True),
    st.sampled_from([Q35, I440FX, guest_pci.Guest()]),
)
def test_every_function_has_an_address_of_its_own(
    members: list[str], machine: guest_pci.Guest
) -> None:
    claim = dataclasses.replace(
        WHOLE, handle=members[0], members=tuple(members[1:])
    )
    parsed = elements(claim, machine=machine)
    use = connection.parse_hostdevs(
        "<domain><devices>"
        + "".join(ElementTree.tostring(e, encoding="unicode") for e in parsed)
        + "</devices></domain>"
    )
    assert use.functions == frozenset(members)
    places = [place for e in parsed if (place := guest_address(e)) is not None]
    assert len({place[:3] for place in places}) == len(places)
    for bus, slot, function, flag in places:
        assert (flag == "on") == (function == 0)
        assert any(p[:3] == (bus, slot, 0) for p in places)


def as_text(element: ElementTree.Element) -> str:
    return ElementTree.tostring(element, encoding="unicode")


def test_the_elements_of_some_devices_are_found_whole() -> None:
    texts = [as_text(element) for element in elements(CARD)]
    domain = f"<domain><devices>{''.join(texts)}</devices></domain>"
    first, second, *_ = CARD.handle, *CARD.members
    assert connection.find_hostdevs(domain, {second}) == (texts[2],)
    assert connection.find_hostdevs(domain, {first, second}) == (*texts[1:3],)
    assert connection.find_hostdevs(domain, {"0000:ff:00.0"}) == ()


def test_functions_of_one_slot_are_recognized() -> None:
    port, *functions = map(as_text, elements(CARD))
    assert connection.share_one_slot(functions)
    assert not connection.share_one_slot(functions[:1])
    assert not connection.share_one_slot([port, functions[0]])
    # libvirt has chosen an address for neither
    bare = "<hostdev type='mdev'><source/></hostdev>"
    assert not connection.share_one_slot([bare, bare])


# -- addresses in the guest ------------------------------------------------


def test_a_card_s_functions_share_a_root_port_of_their_own() -> None:
    port, *functions = elements(CARD)
    assert port.attrib == {
        "type": "pci",
        "index": "1",
        "model": "pcie-root-port",
    }
    assert [guest_address(f) for f in functions] == [
        (1, 0, 0, "on"),
        (1, 0, 1, ""),
        (1, 0, 2, ""),
        (1, 0, 3, ""),
    ]


def test_a_card_s_functions_share_a_slot_of_an_i440fx() -> None:
    parsed = elements(CARD, machine=I440FX)
    assert [guest_address(f) for f in parsed] == [
        (0, 31, 0, "on"),
        (0, 31, 1, ""),
        (0, 31, 2, ""),
        (0, 31, 3, ""),
    ]


def test_two_cards_have_two_slots() -> None:
    other = dataclasses.replace(
        WHOLE, handle="0000:66:00.0", members=("0000:66:00.1",)
    )
    assert [
        e.get("index") for e in elements(CARD, other) if e.tag == "controller"
    ] == ["1", "2"]
    slots = {
        place[:2]
        for e in elements(CARD, other, machine=I440FX)
        if (place := guest_address(e))
    }
    assert slots == {(0, 31), (0, 30)}


def test_function_numbers_stay_those_of_the_host() -> None:
    claim = dataclasses.replace(WHOLE, members=("0000:65:00.6",))
    assert [guest_address(e) for e in elements(claim)[1:]] == [
        (1, 0, 0, "on"),
        (1, 0, 6, ""),
    ]


def test_functions_without_function_0_get_separate_slots() -> None:
    """A guest looks for function 0 and no further if there is none."""
    claim = dataclasses.replace(
        WHOLE, handle="0000:65:00.1", members=("0000:65:00.2",)
    )
    assert [guest_address(e) for e in elements(claim)] == [None, None]


def test_a_group_over_two_slots_of_the_host_has_two_of_the_guest() -> None:
    claim = dataclasses.replace(CARD, members=("0000:65:00.1", "0000:66:00.0"))
    places = {
        e.find("./source/address").get("bus"): guest_address(e)  # type: ignore[union-attr]
        for e in elements(claim)
        if e.tag == "hostdev"
    }
    assert places["0x66"] is None
    assert places["0x65"] == (1, 0, 1, "")


@pytest.mark.parametrize(
    "machine", ["", "pseries", "s390-ccw-virtio", "microvm"]
)
def test_other_machines_are_left_to_libvirt(machine: str) -> None:
    parsed = elements(CARD, machine=guest_pci.Guest(machine=machine))
    assert [guest_address(e) for e in parsed] == [None] * 4


def test_a_full_bus_is_left_to_libvirt() -> None:
    full = dataclasses.replace(I440FX, slots=frozenset(range(32)))
    assert [guest_address(e) for e in elements(CARD, machine=full)] == [
        None
    ] * 4


GUEST = """
<domain type="kvm"><os><type machine="pc-q35-7.2">hvm</type></os>
<launchSecurity type="tdx"/>
<cpu><numa><cell id="0"/><cell id="1"/></numa></cpu>
<devices>
<controller type="pci" model="pcie-root"/>
<controller type="pci" model="pcie-root-port"/>
<controller type="pci" model="pcie-root-port" index="3"/>
<controller type="usb" index="7"/>
<hostdev mode="subsystem" type="mdev" model="vfio-ap"/>
<disk><address type="pci" domain="0x0000" bus="0x02" slot="0x00"/></disk>
<disk><address type="pci" bus="0x00" slot="0x1d" function="0x0"/></disk>
<disk><address type="drive" bus="9" slot="9"/></disk>
<graphics type="vnc"/><video><model type="ramfb"/></video>
</devices></domain>
"""


def test_used_addresses_of_a_guest() -> None:
    assert guest_pci.parse_guest(GUEST) == guest_pci.Guest(
        machine="pc-q35-7.2",
        has_graphics=True,
        has_ramfb=True,
        has_ap=True,
        # 0 the root, 1 the port without an index, 2 a disk's, 3 written
        buses=frozenset({0, 1, 2, 3}),
        slots=frozenset({0x1D}),
        encryption="tdx",
        cells=2,
    )
    assert guest_pci.parse_guest("<domain/>") == guest_pci.Guest()


@given(
    st.frozensets(st.integers(0, 31)),
    st.frozensets(st.integers(0, 40)).map(lambda b: b | {0}),
)
def test_used_addresses_are_not_assigned_again(
    slots: frozenset[int], buses: frozenset[int]
) -> None:
    card = pci.parse_address("0000:65:00.0")
    group = (card, dataclasses.replace(card, function=1))
    for machine in ("pc", "q35"):
        layout = guest_pci.plan_layout(
            guest_pci.Guest(machine=machine, slots=slots, buses=buses), [group]
        )
        for place in layout.places.values():
            if machine == "pc":
                assert (place.bus, layout.ports) == (0, ())
                assert 3 <= place.slot <= 31
                assert place.slot not in slots
            else:
                assert (place.slot, layout.ports) == (0, (place.bus,))
                assert place.bus not in buses


# -- options ---------------------------------------------------------------


def test_display_and_ramfb_are_set_for_vgpus_only() -> None:
    devices = hostdevs(MDEV, WHOLE, SECOND, options=FIRMWARE)
    assert [(h.get("display"), h.get("ramfb")) for h in devices] == [
        ("on", "on"),
        (None, None),
        ("on", None),
    ]


def test_a_display_can_be_refused_too() -> None:
    off = flavors.Options(has_display=False)
    blind = guest_pci.Guest()
    (attributes,) = hostdevs(MDEV, options=off, machine=blind)
    assert attributes["display"] == "off"
    (attributes,) = hostdevs(TYPED, options=off, host=NEW)
    assert attributes["display"] == "off"
    (attributes,) = hostdevs(TYPED, options=off, host=OLD)
    assert "display" not in attributes


def test_a_function_s_display_needs_a_libvirt_that_knows_it() -> None:
    (attributes,) = hostdevs(TYPED, options=FIRMWARE, host=NEW)
    assert (attributes["display"], attributes["ramfb"]) == ("on", "on")
    with pytest.raises(errors.ClaimError) as caught:
        hostdevs(TYPED, options=SCREEN, host=host_of(10, 2, 1))
    assert "needs libvirt 10.3.0, this host has 10.2.1" in str(caught.value)


@pytest.mark.parametrize(
    "claim",
    [
        WHOLE,
        VF,
        dataclasses.replace(MDEV, device_api="vfio-ap"),
        dataclasses.replace(MDEV, device_api="vfio-ccw"),
    ],
)
def test_a_device_without_display_is_refused(claim: model.Claim) -> None:
    with pytest.raises(errors.ClaimError, match="none of its devices has a"):
        elements(claim, options=SCREEN)


def test_a_display_needs_a_graphics_device() -> None:
    with pytest.raises(errors.ClaimError, match="no graphics device"):
        elements(MDEV, options=SCREEN, machine=guest_pci.Guest(machine="q35"))


def test_a_guest_has_one_ramfb() -> None:
    taken = dataclasses.replace(Q35, has_ramfb=True)
    assert hostdevs(MDEV, options=SCREEN, machine=taken)
    with pytest.raises(errors.ClaimError, match="has a ramfb already"):
        elements(MDEV, options=FIRMWARE, machine=taken)


@pytest.mark.parametrize(("has_rom", "bar"), [(True, "on"), (False, "off")])
def test_the_rom_is_set_for_functions_only(has_rom: bool, bar: str) -> None:
    options = flavors.Options(has_rom=has_rom)
    parsed = elements(MDEV, TYPED, options=options)
    bars = [rom.get("bar") for e in parsed for rom in e.iterfind("./rom")]
    assert bars == [bar]
    assert parsed[0].find("./rom") is None


def test_an_mdev_has_no_rom() -> None:
    with pytest.raises(errors.ClaimError, match="none of its devices is a"):
        elements(MDEV, options=flavors.Options(has_rom=False))


def test_a_guest_has_one_matrix() -> None:
    adapter = dataclasses.replace(MDEV, device_api="vfio-ap")
    other = dataclasses.replace(SECOND, device_api="vfio-ap")
    assert len(hostdevs(adapter)) == 1
    with pytest.raises(errors.ClaimError, match="one vfio-ap device"):
        hostdevs(adapter, other)
    taken = dataclasses.replace(Q35, has_ap=True)
    with pytest.raises(errors.ClaimError, match="gives it 2"):
        hostdevs(adapter, machine=taken)


# -- IOMMUFD ---------------------------------------------------------------

POLICY = dataclasses.replace(NEWEST, uses_iommufd=True)


def encrypted(kind: str) -> guest_pci.Guest:
    return dataclasses.replace(Q35, encryption=kind)


def iommufds(*claims: model.Claim, **arguments: object) -> list[str | None]:
    """Return the attribute iommufd of each hostdev."""
    parsed = elements(*claims, **arguments)  # type: ignore[arg-type]
    drivers = [e.find("./driver") for e in parsed if e.tag == "hostdev"]
    return [None if d is None else d.get("iommufd") for d in drivers]


@pytest.mark.parametrize("kind", ["sev", "sev-snp", "tdx"])
def test_functions_of_an_encrypted_guest_have_iommufd(kind: str) -> None:
    machine = encrypted(kind)
    assert iommufds(WHOLE, TYPED, machine=machine, host=NEWEST) == ["yes"] * 2


@pytest.mark.parametrize("kind", ["", "s390-pv"])
def test_functions_of_other_guests_have_none(kind: str) -> None:
    assert iommufds(WHOLE, machine=encrypted(kind), host=NEWEST) == [None]


def test_a_configured_host_uses_iommufd_for_functions_only() -> None:
    assert iommufds(CARD, MDEV, host=POLICY) == ["yes"] * 4 + [None]


def test_sev_does_not_need_iommufd() -> None:
    assert iommufds(WHOLE, machine=encrypted("sev"), host=OLD) == [None]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"libvirt": (12, 0, 0)},
            "needs libvirt 12.1.0, this host has 12.0.0",
        ),
        ({"qemu": (8, 2, 2)}, "needs QEMU 9.0.0, this host has 8.2.2"),
        ({"qemu": ()}, "needs QEMU 9.0.0, this host has an unknown version"),
        ({"has_iommufd": False}, "libvirt says that this host has none"),
    ],
)
@pytest.mark.parametrize(
    ("machine", "host", "subject"),
    [
        (encrypted("tdx"), NEWEST, r"encrypted memory \(tdx\)"),
        (encrypted("sev-snp"), NEWEST, r"encrypted memory \(sev-snp\)"),
        (Q35, POLICY, r"use_iommufd in \[nova_accel\]"),
    ],
)
def test_a_host_without_iommufd_is_refused(
    machine: guest_pci.Guest,
    host: hypervisor.Hypervisor,
    subject: str,
    changes: dict[str, object],
    reason: str,
) -> None:
    # libvirt's own answer counts more than versions.
    changes = {"has_iommufd": False, **changes}
    poor = dataclasses.replace(host, **changes)  # type: ignore[arg-type]
    with pytest.raises(errors.ClaimError, match=f"{subject}.*{reason}"):
        elements(WHOLE, machine=machine, host=poor)


def test_an_mdev_is_refused_in_an_encrypted_guest() -> None:
    with pytest.raises(errors.ClaimError, match="without hw:mem_encryption"):
        elements(MDEV, machine=encrypted("sev-snp"), host=NEWEST)


@pytest.mark.parametrize(
    ("values", "has_iommufd"),
    [
        ("<value>yes</value><value>no</value>", True),
        ("<value>no</value>", False),
        ("", False),
    ],
)
def test_libvirt_says_whether_a_host_has_iommufd(
    values: str, has_iommufd: bool
) -> None:
    text = (
        '<domainCapabilities><devices><hostdev supported="yes"><enum'
        ' name="mode"><value>yes</value></enum>'
        f'<enum name="iommufd">{values}</enum></hostdev></devices>'
        "</domainCapabilities>"
    )
    assert hypervisor.parse_iommufd(text) is has_iommufd


# -- NUMA nodes for the memory of GPUs -------------------------------------

EIGHT = flavors.Options(memory_nodes=8)


def nodesets(*claims: model.Claim, **arguments: object) -> list[str | None]:
    """Return the nodes of each hostdev."""
    parsed = elements(*claims, **arguments)  # type: ignore[arg-type]
    nodes = [e.find("./acpi") for e in parsed if e.tag == "hostdev"]
    return [None if node is None else node.get("nodeset") for node in nodes]


def test_each_whole_gpu_has_memory_nodes_of_its_own() -> None:
    other = dataclasses.replace(WHOLE, handle="0000:66:00.0")
    assert nodesets(CARD, MDEV, other, options=EIGHT, host=NEWEST) == [
        "1,2,3,4,5,6,7,8",
        *[None] * 4,
        "9,10,11,12,13,14,15,16",
    ]


def test_other_functions_of_a_guest_get_no_memory_nodes() -> None:
    grace = dataclasses.replace(WHOLE, profile="10de:2941")
    disk = dataclasses.replace(
        WHOLE, profile="144d:a80a", handle="0000:66:00.0", members=()
    )
    assert nodesets(disk, grace, options=EIGHT, host=NEWEST) == [
        None,
        "1,2,3,4,5,6,7,8",
        *[None] * len(grace.members),
    ]


def test_memory_nodes_follow_the_nodes_of_the_guest() -> None:
    machine = dataclasses.replace(Q35, cells=2)
    options = flavors.Options(memory_nodes=2)
    assert nodesets(WHOLE, machine=machine, options=options, host=NEWEST) == [
        "2,3"
    ]


@pytest.mark.parametrize(
    ("claim", "host", "reason"),
    [
        (TYPED, NEWEST, "none of its devices is a whole"),
        (WHOLE, NEW, "needs libvirt 11.8.0, this host has 10.3.0"),
        (
            WHOLE,
            dataclasses.replace(NEWEST, qemu=(8, 2, 2)),
            "needs QEMU 9.0.0, this host has 8.2.2",
        ),
    ],
)
def test_memory_nodes_are_refused(
    claim: model.Claim, host: hypervisor.Hypervisor, reason: str
) -> None:
    with pytest.raises(errors.ClaimError, match=reason):
        elements(claim, options=EIGHT, host=host)
