# SPDX-License-Identifier: Apache-2.0
"""Regions are assigned only to groups whose function they have or can load."""

import dataclasses
from typing import Any

import pytest

from nova_accel import errors, model
from nova_accel.claims import claim_plan, matching
from nova_accel.host.state import device_notes
from nova_accel.model import flavors, names
from tests.support.fpga import card as fpga
from tests.support.hosts import domains
from virt_hooks.guest import connection
from virt_hooks.operations.fpga import region_programs

OLD, NEW = map(names.fpga_function_trait, (fpga.OLD, fpga.NEW))
HELD = connection.HostdevUse(functions=frozenset({fpga.CARD}))
NONE = connection.HostdevUse()


def planned(
    host: model.HostState, group: flavors.RequestGroup
) -> tuple[model.Claim, ...]:
    return claim_plan.plan(
        fpga.A, (group,), (fpga.slot(),), fpga.ROOT, host, {}
    )


def served(
    host: model.HostState,
    group: flavors.RequestGroup,
    before: tuple[model.Claim, ...] = (),
    running: connection.HostdevUse = NONE,
    defined: connection.HostdevUse = NONE,
    holders: tuple[model.Claim, ...] = (),
) -> model.Claim:
    """Return the planned claim."""
    libvirt = domains.SimulatedDomains(lambda: defined, lambda: running)
    programs = region_programs.RegionPrograms(
        libvirt, device_notes.FaultNotes()
    )
    images = {fpga.IMAGE: fpga.bitstream()}
    (claim,) = programs.plan(
        planned(host, group), before, images, holders, host
    )
    return claim


def test_a_region_with_the_function_needs_no_bitstream() -> None:
    claim = served(fpga.host(), fpga.asks(OLD))
    assert claim.bitstream is None
    assert claim.functions == {OLD}
    assert claim.slot == claim.handle == fpga.CARD
    assert claim.device == fpga.REGION


def test_any_region_serves_a_flavor_without_a_function() -> None:
    assert served(fpga.host(), fpga.asks()).bitstream is None


def test_a_region_with_another_function_does_not_match() -> None:
    with pytest.raises(errors.ClaimError, match="FPGA"):
        planned(fpga.host(), fpga.asks(NEW))


def test_a_region_with_an_unreadable_function_is_refused() -> None:
    host = fpga.host(fpga.region(None))
    with pytest.raises(errors.ClaimError, match="can't be read now"):
        served(host, fpga.asks(OLD))


def test_a_bitstream_is_loaded_into_a_fitting_region() -> None:
    claim = served(fpga.host(), fpga.asks(image=fpga.IMAGE))
    assert claim.bitstream == fpga.bitstream()
    assert claim.state is model.ClaimState.PLANNED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_programmable": False}, "programm"),
        ({"interfaces": ("00" * 16,)}, "interface"),
    ],
)
def test_a_bitstream_that_does_not_fit_is_refused(
    change: dict[str, Any], reason: str
) -> None:
    device = fpga.region()
    assert device.region is not None
    other = dataclasses.replace(
        device, region=dataclasses.replace(device.region, **change)
    )
    with pytest.raises(errors.ClaimError, match=reason):
        served(fpga.host(other), fpga.asks(image=fpga.IMAGE))


def test_a_bitstream_of_another_vendor_is_refused() -> None:
    device = dataclasses.replace(fpga.region(), vendor_id="10ee")
    with pytest.raises(errors.ClaimError, match="xilinx"):
        served(fpga.host(device), fpga.asks(image=fpga.IMAGE))


def test_a_bitstream_that_is_not_cached_is_refused() -> None:
    other = "11111111-5b0c-4c0f-9d8e-0d6f3a7b1c2d"
    with pytest.raises(errors.ClaimError, match="not on this host"):
        served(fpga.host(), fpga.asks(image=other))


def test_a_function_must_be_that_of_the_bitstream() -> None:
    with pytest.raises(errors.ClaimError, match="but the flavor"):
        served(fpga.host(), fpga.asks(OLD, image=fpga.IMAGE))


def test_a_faulted_region_is_refused() -> None:
    device = dataclasses.replace(fpga.region(), fault="it failed")
    with pytest.raises(errors.ClaimError, match="it failed"):
        served(fpga.host(device), fpga.asks(OLD))


def made(group: flavors.RequestGroup) -> model.Claim:
    return dataclasses.replace(
        served(fpga.host(), group), state=model.ClaimState.MADE
    )


def test_a_region_in_the_servers_domain_is_not_programmed() -> None:
    """The host can't read the region meanwhile."""
    before = made(fpga.asks(image=fpga.IMAGE))
    claim = served(
        fpga.host(fpga.region(None)),
        fpga.asks(image=fpga.IMAGE),
        (before,),
        HELD,
        HELD,
    )
    assert claim.state is model.ClaimState.MADE


def test_a_loaded_bitstream_is_not_loaded_again() -> None:
    before = made(fpga.asks(image=fpga.IMAGE))
    host = fpga.host(fpga.region(fpga.NEW))
    claim = served(host, fpga.asks(image=fpga.IMAGE), (before,))
    assert claim.state is model.ClaimState.MADE


def test_a_lost_bitstream_is_loaded_again() -> None:
    """The host was switched off and on."""
    before = made(fpga.asks(image=fpga.IMAGE))
    claim = served(fpga.host(), fpga.asks(image=fpga.IMAGE), (before,))
    assert claim.state is model.ClaimState.PLANNED
    assert claim.bitstream == fpga.bitstream()


def test_a_function_that_the_card_no_longer_shows_is_refused() -> None:
    """AMD's driver loses it when a guest gets the card."""
    before = made(fpga.asks(OLD))
    with pytest.raises(errors.ClaimError, match="nothing"):
        served(fpga.host(fpga.region("")), fpga.asks(OLD), (before,))


def test_a_region_in_another_domain_is_not_programmed() -> None:
    with pytest.raises(errors.ClaimError, match="a server has"):
        served(fpga.host(), fpga.asks(image=fpga.IMAGE), defined=HELD)


def test_a_region_with_a_dependent_in_a_domain_is_not_programmed() -> None:
    device = fpga.region(dependents=(fpga.VF,))
    use = connection.HostdevUse(functions=frozenset({fpga.VF}))
    with pytest.raises(errors.ClaimError, match=fpga.VF):
        served(fpga.host(device), fpga.asks(image=fpga.IMAGE), defined=use)


def test_a_region_with_a_member_of_another_server_is_not_programmed() -> None:
    device = fpga.region(members=(fpga.VF,))
    other = dataclasses.replace(
        made(fpga.asks(OLD)), consumer=fpga.B, slot=fpga.VF, handle=fpga.VF
    )
    with pytest.raises(errors.ClaimError, match="a server has"):
        served(
            fpga.host(device),
            fpga.asks(image=fpga.IMAGE),
            holders=(other,),
        )


def test_other_devices_are_ignored() -> None:
    assert matching.can_serve(
        fpga.asks(image=fpga.IMAGE), dataclasses.replace(fpga.card())
    )
    programs = region_programs.RegionPrograms(
        connection.NO_DOMAINS, device_notes.FaultNotes()
    )
    assert programs.plan((), (), {}, (), fpga.host()) == ()


def test_each_group_gets_the_region_of_its_interface() -> None:
    """The order of the providers' UUIDs does not matter."""
    interface, other = fpga.INTERFACE, "22" * 16
    for first, second in ((interface, other), (other, interface)):
        devices = tuple(
            placed(card, interface)
            for card, interface in (
                (fpga.CARD, first),
                ("0000:6e:00.0", second),
            )
        )
        slots = [
            model.Slot(
                provider=names.provider_uuid(fpga.ROOT.uuid, d.address),
                resource_class=names.FPGA_CLASS,
                identifier=d.slots[0],
            )
            for d in devices
        ]
        groups = [
            dataclasses.replace(
                fpga.asks(names.interface_trait(uuid), image=uuid), suffix=uuid
            )
            for uuid in (interface, other)
        ]
        host = model.HostState(devices=devices)
        claims = claim_plan.plan(fpga.A, groups, slots, fpga.ROOT, host)
        for claim in claims:
            device = host.device(claim.device)
            assert device is not None
            assert device.region is not None
            assert device.region.interfaces == (claim.image,)


def placed(card: str, interface: str) -> model.Device:
    """Return the region of another card."""
    device = fpga.region()
    assert device.region is not None
    return dataclasses.replace(
        device,
        address=names.region_address(card, 0),
        parent=card,
        slots=(card,),
        region=dataclasses.replace(
            device.region, card=card, interfaces=(interface,)
        ),
    )
