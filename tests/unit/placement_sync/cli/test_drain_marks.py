# SPDX-License-Identifier: Apache-2.0
"""Addresses of drains select devices, which the marks make unavailable."""

import dataclasses
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory import conditions, tree_builder
from nova_accel.model import names, providers
from tests.hosts import look
from tests.support import examples, strategies
from tests.support.fpga import card as fpga

GPU = "0000:3b:00.0"


def drain_of(address: str, reason: str = "a fan is loud") -> conditions.Drains:
    return {address: model.Drain(address=address, reason=reason)}


# -- devices of an address --------------------------------------------------


def address_at(host: model.HostState, text: str) -> str | None:
    device = conditions.find_device(host, text)
    return device.address if device else None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (fpga.CARD, fpga.CARD),
        (" 0000:5E:00.0 ", fpga.CARD),
        ("5e:00.0", fpga.CARD),
        (fpga.REGION, fpga.REGION),
        ("5E:00.0/region-0", fpga.REGION),
        (fpga.VF, fpga.REGION),
        ("0000:5e:00.2", fpga.REGION),
        ("0000:99:00.0", None),
        ("slot-0", None),
        ("", None),
        ("5e", None),
    ],
)
def test_an_address_selects_its_device(text: str, address: str | None) -> None:
    region = fpga.region(slot=fpga.VF, members=("0000:5e:00.2",))
    host = fpga.host(region, strategies.card(GPU, 1))
    assert address_at(host, text) == address
    assert conditions.resolve_address(host, text) == address or address is None


def test_a_cards_address_does_not_select_its_region() -> None:
    """Guests get the region under the card's address, too."""
    assert address_at(fpga.host(), fpga.region().slots[0]) == fpga.CARD


@pytest.mark.parametrize("name", examples.share(look.NAMES))
def test_each_function_selects_a_device(
    tmp_path: pathlib.Path, name: str
) -> None:
    host = look.read(look.make(name, tmp_path))
    for device in host.devices:
        assert address_at(host, device.address) == device.address
        for function in (*device.slots, *device.members):
            if ":" in function:
                selected = conditions.find_device(host, function)
                assert selected is not None
                # The function of a region's card selects the region.
                assert device.address in (
                    selected.address,
                    selected.parent,
                ) or (selected.address == device.parent)


def test_the_address_of_a_missing_device_is_normalized() -> None:
    host = model.HostState()
    assert conditions.resolve_address(host, "5E:00.0") == fpga.CARD
    assert conditions.resolve_address(host, " mtty ") == "mtty"


# -- marks ------------------------------------------------------------------


def drains_by(host: model.HostState) -> dict[str, str]:
    return {d.address: d.drain for d in host.devices if d.drain}


@pytest.mark.parametrize(
    ("address", "marked"),
    [
        (fpga.CARD, {fpga.CARD, fpga.REGION}),
        (fpga.REGION, {fpga.REGION}),
        (fpga.VF, {fpga.REGION}),
        ("0000:99:00.0", set()),
    ],
)
def test_a_drained_card_drains_its_parts(
    address: str, marked: set[str]
) -> None:
    host = fpga.host(fpga.region(slot=fpga.VF), strategies.card(GPU, 1))
    drained = conditions.mark_drains(host, drain_of(address))
    assert drains_by(drained) == dict.fromkeys(marked, "a fan is loud")
    reasons = {p.where: p.reason for p in drained.problems}
    assert reasons.keys() <= marked
    assert bool(reasons) is bool(marked)
    for reason in reasons.values():
        assert f"`nova-accel undrain {address}`" in reason
        assert "a fan is loud" in reason


def test_two_drains_of_one_device_are_both_listed() -> None:
    both = {**drain_of(fpga.CARD, "one"), **drain_of(fpga.REGION, "two")}
    drained = conditions.mark_drains(fpga.host(), both)
    assert drains_by(drained) == {fpga.CARD: "one", fpga.REGION: "one; two"}
    assert [p.where for p in drained.problems] == [fpga.CARD, fpga.REGION]


def test_a_reason_is_followed_by_its_author() -> None:
    drain = model.Drain(address=fpga.CARD, reason="one", author="ann")
    drained = conditions.mark_drains(fpga.host(), {fpga.CARD: drain})
    assert drains_by(drained)[fpga.CARD] == "one (ann)"


def test_a_drain_without_a_reason() -> None:
    drained = conditions.mark_drains(fpga.host(), drain_of(fpga.CARD, ""))
    assert all(device.drain for device in drained.devices)


def test_an_unhealthy_device_is_faulted() -> None:
    faults = {
        fpga.CARD: model.Fault(address=fpga.CARD, reason="2 fatal errors")
    }
    host, healed = conditions.mark_faults(
        conditions.mark_unhealthy(fpga.host(), faults), {}
    )
    assert not healed
    assert [d.fault for d in host.devices] == ["2 fatal errors", ""]
    (problem,) = host.problems
    assert problem.where == fpga.CARD
    assert "2 fatal errors" in problem.reason
    assert "nova-accel heal" not in problem.reason


@pytest.mark.parametrize(
    ("noted", "read", "reason"),
    [
        ("it failed", "2 fatal errors", "it failed; 2 fatal errors"),
        ("2 fatal errors", "2 fatal errors", "2 fatal errors"),
    ],
)
def test_a_device_has_each_reason_of_its_faults_once(
    noted: str, read: str, reason: str
) -> None:
    notes, faults = (
        {fpga.CARD: model.Fault(address=fpga.CARD, reason=text)}
        for text in (noted, read)
    )
    host, _ = conditions.mark_faults(
        conditions.mark_unhealthy(fpga.host(), faults), notes
    )
    device = host.device(fpga.CARD)
    assert device is not None
    assert device.fault == reason


def node(
    host: model.HostState, address: str = fpga.REGION
) -> providers.ProviderNode:
    tree = tree_builder.build_tree(fpga.ROOT, host, policy.DeviceRules())
    provider = tree.node(names.provider_uuid(fpga.ROOT.uuid, address))
    assert provider is not None
    return provider


def test_a_drained_device_keeps_its_counters_and_offers_nothing() -> None:
    before, after = (
        node(host)
        for host in (
            fpga.host(),
            conditions.mark_drains(fpga.host(), drain_of(fpga.CARD)),
        )
    )
    assert after.inventories.keys() == before.inventories.keys()
    record = after.inventories[names.FPGA_CLASS]
    assert (record.total, record.reserved) == (1, 1)
    assert after.slots == before.slots
    assert names.REGION_TRAIT in before.traits - after.traits
    assert {names.DRAINED_TRAIT} == after.traits - before.traits


def test_a_device_with_unknown_marks_is_reserved_and_not_drained() -> None:
    host = conditions.mark_unknown(fpga.host(), "/state/drained: EACCES", True)
    after = node(host)
    record = after.inventories[names.FPGA_CLASS]
    assert (record.total, record.reserved) == (1, 1)
    assert names.UNKNOWN_TRAIT in after.traits
    assert not after.traits & {names.DRAINED_TRAIT, names.FAULTED_TRAIT}
    assert names.REGION_TRAIT not in after.traits


@st.composite
def drained_hosts(
    draw: st.DrawFn,
) -> tuple[model.HostState, conditions.Drains]:
    """Draw a host and drains of devices, functions and other addresses."""
    host = draw(strategies.hosts())
    if draw(st.booleans()):
        card, region = fpga.card(), fpga.region(slot=fpga.VF)
        host = dataclasses.replace(host, devices=(*host.devices, card, region))
    own_addresses = [
        name
        for device in host.devices
        for name in (device.address, *device.slots, *device.members)
    ]
    others = st.one_of(strategies.pci_addresses, st.sampled_from(["mtty"]))
    addresses = draw(
        st.sets(
            st.one_of(st.sampled_from(own_addresses), others)
            if own_addresses
            else others
        )
    )
    return host, {
        address: model.Drain(address=address, reason=draw(st.text(max_size=9)))
        for address in addresses
    }


@settings(deadline=None)
@given(drained_hosts())
def test_marks_change_only_the_drain(
    drawn: tuple[model.HostState, conditions.Drains],
) -> None:
    host, drained = drawn
    marked = conditions.mark_drains(host, drained)
    plain = tuple(dataclasses.replace(d, drain="") for d in marked.devices)
    assert plain == host.devices
    assert (marked.unknown, marked.complete) == (host.unknown, host.complete)
    assert {*host.problems} <= {*marked.problems}
    assert conditions.mark_drains(host, {}) == host
    assert conditions.mark_drains(marked, drained) == marked
    selected = {address_at(host, address) for address in drained}
    assert {d.address for d in marked.devices if d.drain} == {
        d.address for d in host.devices if selected & {d.address, d.parent}
    } - {None}
