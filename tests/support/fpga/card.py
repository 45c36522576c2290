# SPDX-License-Identifier: Apache-2.0
"""A described FPGA card, and bitstreams for it."""

from nova_accel import model
from nova_accel.model import flavors, names, providers

CARD = "0000:5e:00.0"
VF = "0000:5e:00.1"
REGION = names.region_address(CARD, 0)
INTERFACE = "69528db6eb31577a8c3668f9faa081f6"
OLD = "d8424dc4a4a3c413f89e433683f9040b"
NEW = "c0ffee00123456789abcdef012345678"
IMAGE = "8b6f2f5e-5b0c-4c0f-9d8e-0d6f3a7b1c2d"
A = "aaaaaaaa-0000-4000-8000-000000000000"
B = "bbbbbbbb-0000-4000-8000-000000000000"
ROOT = providers.ProviderRoot(
    name="node1", uuid="11111111-1111-4111-8111-111111111111"
)
PROVIDER = names.provider_uuid(ROOT.uuid, REGION)
PROFILE = model.Profile(
    name="region",
    trait=names.REGION_TRAIT,
    charges={names.FPGA_CLASS: 1},
    available=1,
)


def bitstream(
    function: str = NEW, name: str = IMAGE, interface: str = INTERFACE
) -> model.Bitstream:
    """Return a checked bitstream without a file."""
    return model.Bitstream(
        name=name,
        vendor="intel",
        path=f"/nowhere/{function}",
        function=function,
        interface=interface,
        sha512="0" * 128,
        size=4096,
    )


def card() -> model.Device:
    """Return the card, which has no counters itself."""
    return model.Device(
        address=CARD,
        plugin="dfl",
        technology="fpga",
        vendor="intel",
        model="Arria 10 PAC",
        resource_class=names.FPGA_CLASS,
        counters={},
        slots=(),
        vendor_id="8086",
        product_id="09c4",
    )


def region(
    function: str | None = OLD,
    slot: str = CARD,
    members: tuple[str, ...] = (),
    dependents: tuple[str, ...] = (),
    blank: str = "",
) -> model.Device:
    """Return the card's region; ``function`` None means unreadable."""
    is_read = function is not None
    traits = {names.PROGRAMMABLE_TRAIT, names.interface_trait(INTERFACE)}
    if function:
        traits.add(names.fpga_function_trait(function))
    return model.Device(
        address=REGION,
        plugin="dfl",
        technology="fpga",
        vendor="intel",
        model="Arria 10 PAC",
        resource_class=names.FPGA_CLASS,
        counters={names.FPGA_CLASS: 1},
        slots=(slot,),
        members=members,
        vendor_id="8086",
        product_id="09c4",
        profiles=(PROFILE,),
        traits=frozenset(traits if is_read else ()),
        parent=CARD,
        region=model.Region(
            card=CARD,
            number=0,
            function=function,
            interfaces=(INTERFACE,) if is_read else (),
            is_programmable=is_read,
            dependents=dependents,
            blank=blank,
        ),
    )


def host(*devices: model.Device) -> model.HostState:
    """Return a host with a card and these devices, by default its region."""
    return model.HostState(devices=(card(), *(devices or (region(),))))


def slot(identifier: str = CARD) -> model.Slot:
    """Return the slot that Nova assigns of the region."""
    return model.Slot(
        provider=PROVIDER,
        resource_class=names.FPGA_CLASS,
        identifier=identifier,
    )


def asks(*traits: str, image: str = "") -> flavors.RequestGroup:
    """Return a group that requests a region."""
    return flavors.RequestGroup(
        suffix="_FPGA",
        resources={names.FPGA_CLASS: 1},
        required=frozenset(traits),
        bitstream=image,
    )
