# SPDX-License-Identifier: Apache-2.0
"""Regions are assigned only to groups whose function they have or can load."""

import dataclasses
from typing import Any

import pytest

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.fpga import regions
from nova_accel.model import flavors, names
from tests.support.fpga import card as fpga
from tests.support.hosts import domains
from virt_hooks.guest import connection
from virt_hooks.spawn import host_access, region_programs

OLD, NEW = map(names.function_trait, (fpga.OLD, fpga.NEW))
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
    """Return the claim as it is to be made."""
    libvirt = domains.SimulatedDomains(lambda: defined, lambda: running)
    programs = region_programs.RegionPrograms(
        host_access.HostAccess(domains=libvirt)
    )
    images = {fpga.IMAGE: fpga.bitstream()}
    (claim,) = programs.plan(
        planned(host, group), before, images, holders, host
    )
    return claim


def test_a_region_that_has_the_function_is_given_as_it_is() -> None:
    claim = served(fpga.host(), fpga.asks(OLD))
    assert claim.bitstream is None
    assert claim.functions == {OLD}
    assert claim.slot == claim.handle == fpga.CARD
    assert claim.device == fpga.REGION


def test_any_region_serves_a_flavor_that_names_none() -> None:
    assert served(fpga.host(), fpga.asks()).bitstream is None


def test_a_region_with_another_function_does_not_match() -> None:
    with pytest.raises(errors.ClaimError, match="FPGA"):
        planned(fpga.host(), fpga.asks(NEW))


def test_a_function_nobody_can_read_is_not_promised() -> None:
    host = fpga.host(fpga.region(None))
    with pytest.raises(errors.ClaimError, match="can't be read now"):
        served(host, fpga.asks(OLD))


def test_a_bitstream_is_loaded_into_any_region_that_takes_it() -> None:
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


def test_a_bitstream_for_others_cards_is_refused() -> None:
    device = dataclasses.replace(fpga.region(), vendor_id="10ee")
    with pytest.raises(errors.ClaimError, match="xilinx"):
        served(fpga.host(device), fpga.asks(image=fpga.IMAGE))


def test_a_bitstream_that_is_not_here_is_said_to_be_missing() -> None:
    other = "11111111-5b0c-4c0f-9d8e-0d6f3a7b1c2d"
    with pytest.raises(errors.ClaimError, match="not on this host"):
        served(fpga.host(), fpga.asks(image=other))


def test_a_function_beside_a_bitstream_must_be_the_bitstream_s() -> None:
    with pytest.raises(errors.ClaimError, match="but the flavor"):
        served(fpga.host(), fpga.asks(OLD, image=fpga.IMAGE))


def test_a_faulted_region_is_not_given() -> None:
    device = dataclasses.replace(fpga.region(), fault="it failed")
    with pytest.raises(errors.ClaimError, match="it failed"):
        served(fpga.host(device), fpga.asks(OLD))


def made(group: flavors.RequestGroup) -> model.Claim:
    return dataclasses.replace(
        served(fpga.host(), group), state=model.ClaimState.MADE
    )


def test_a_region_that_the_server_s_guest_has_needs_no_work() -> None:
    """Nothing of it can be read meanwhile."""
    before = made(fpga.asks(image=fpga.IMAGE))
    claim = served(
        fpga.host(fpga.region(None)),
        fpga.asks(image=fpga.IMAGE),
        (before,),
        HELD,
        HELD,
    )
    assert claim.state is model.ClaimState.MADE


def test_what_was_loaded_for_the_server_is_not_loaded_again() -> None:
    before = made(fpga.asks(image=fpga.IMAGE))
    host = fpga.host(fpga.region(fpga.NEW))
    claim = served(host, fpga.asks(image=fpga.IMAGE), (before,))
    assert claim.state is model.ClaimState.MADE


def test_what_the_card_has_forgotten_is_loaded_again() -> None:
    """After the host was switched off and on."""
    before = made(fpga.asks(image=fpga.IMAGE))
    claim = served(fpga.host(), fpga.asks(image=fpga.IMAGE), (before,))
    assert claim.state is model.ClaimState.PLANNED
    assert claim.bitstream == fpga.bitstream()


def test_what_a_card_no_longer_shows_is_not_promised() -> None:
    """AMD's driver forgets it when a guest takes the card."""
    before = made(fpga.asks(OLD))
    with pytest.raises(errors.ClaimError, match="nothing"):
        served(fpga.host(fpga.region("")), fpga.asks(OLD), (before,))


def test_a_region_that_a_foreign_guest_has_is_not_programmed() -> None:
    with pytest.raises(errors.ClaimError, match="a server has"):
        served(fpga.host(), fpga.asks(image=fpga.IMAGE), defined=HELD)


def test_a_region_on_whose_function_a_guest_depends_is_not_programmed() -> (
    None
):
    device = fpga.region(dependents=(fpga.VF,))
    use = connection.HostdevUse(functions=frozenset({fpga.VF}))
    with pytest.raises(errors.ClaimError, match=fpga.VF):
        served(fpga.host(device), fpga.asks(image=fpga.IMAGE), defined=use)


def test_nor_one_of_which_another_server_holds_a_part() -> None:
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


def test_other_devices_are_none_of_its_business() -> None:
    assert regions.can_serve(
        fpga.asks(image=fpga.IMAGE), dataclasses.replace(fpga.card())
    )
    programs = region_programs.RegionPrograms(host_access.HostAccess())
    assert programs.plan((), (), {}, (), fpga.host()) == ()


def test_groups_find_the_regions_of_their_interfaces() -> None:
    """Whatever the order of the providers' uuids."""
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
