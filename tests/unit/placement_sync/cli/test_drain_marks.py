# SPDX-License-Identifier: Apache-2.0
"""Devices of a drain, and their marks."""

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
from tests.support import strategies
from tests.support.fpga import card as fpga

GPU = "0000:3b:00.0"


def said(address: str, reason: str = "a fan is loud") -> conditions.Drains:
    return {address: model.Drain(address=address, reason=reason)}


# -- what an address stands for ---------------------------------------------


def address_at(host: model.HostState, text: str) -> str | None:
    found = conditions.find_device(host, text)
    return found.address if found else None


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
def test_an_address_stands_for_its_device(
    text: str, address: str | None
) -> None:
    region = fpga.region(slot=fpga.VF, members=("0000:5e:00.2",))
    host = fpga.host(region, strategies.card(GPU, 1))
    assert address_at(host, text) == address
    assert conditions.resolve_address(host, text) == address or address is None


def test_a_card_s_own_address_is_not_its_region_s() -> None:
    """Though the region goes to guests under it."""
    assert address_at(fpga.host(), fpga.region().slots[0]) == fpga.CARD


@pytest.mark.parametrize("name", look.NAMES)
def test_each_function_of_a_device_stands_for_one(
    tmp_path: pathlib.Path, name: str
) -> None:
    host = look.read(look.make(name, tmp_path))
    for device in host.devices:
        assert address_at(host, device.address) == device.address
        for function in (*device.slots, *device.members):
            if ":" in function:
                found = conditions.find_device(host, function)
                assert found is not None
                # Of a card whose region it is, the region speaks for it.
                assert device.address in (found.address, found.parent) or (
                    found.address == device.parent
                )


def test_the_address_of_what_is_not_there_is_kept() -> None:
    host = model.HostState()
    assert conditions.resolve_address(host, "5E:00.0") == fpga.CARD
    assert conditions.resolve_address(host, " mtty ") == "mtty"


# -- marked -----------------------------------------------------------------


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
def test_a_card_s_drain_is_its_parts_too(
    address: str, marked: set[str]
) -> None:
    host = fpga.host(fpga.region(slot=fpga.VF), strategies.card(GPU, 1))
    found = conditions.mark_drains(host, said(address))
    assert drains_by(found) == dict.fromkeys(marked, "a fan is loud")
    told = {p.where: p.reason for p in found.problems}
    assert told.keys() <= marked
    assert bool(told) is bool(marked)
    for reason in told.values():
        assert f"`placement-sync undrain {address}`" in reason
        assert "a fan is loud" in reason


def test_two_drains_of_one_device_are_both_told() -> None:
    both = {**said(fpga.CARD, "one"), **said(fpga.REGION, "two")}
    found = conditions.mark_drains(fpga.host(), both)
    assert drains_by(found) == {fpga.CARD: "one", fpga.REGION: "one; two"}
    assert [p.where for p in found.problems] == [fpga.CARD, fpga.REGION]


def test_a_drain_without_a_reason_is_one() -> None:
    found = conditions.mark_drains(fpga.host(), said(fpga.CARD, ""))
    assert all(device.drain for device in found.devices)


def test_who_is_ill_is_set_aside() -> None:
    ill = {fpga.CARD: model.Fault(address=fpga.CARD, reason="2 fatal errors")}
    host, healed = conditions.mark_faults(
        conditions.mark_unhealthy(fpga.host(), ill), {}
    )
    assert not healed
    assert [d.fault for d in host.devices] == ["2 fatal errors", ""]
    (problem,) = host.problems
    assert problem.where == fpga.CARD
    assert "2 fatal errors" in problem.reason
    assert "nova-accel heal" not in problem.reason


def test_a_fault_that_is_noted_and_seen_is_told_once_more() -> None:
    fault = model.Fault(address=fpga.CARD, reason="it failed")
    ill = {fpga.CARD: model.Fault(address=fpga.CARD, reason="it is ill")}
    host, _ = conditions.mark_faults(
        conditions.mark_unhealthy(fpga.host(), ill), {fpga.CARD: fault}
    )
    device = host.device(fpga.CARD)
    assert device is not None
    assert device.fault == "it failed; it is ill"


def test_a_fault_that_is_noted_and_read_has_its_reason_once() -> None:
    fault = model.Fault(address=fpga.CARD, reason="2 fatal errors")
    noted = {fpga.CARD: fault}
    host, _ = conditions.mark_faults(
        conditions.mark_unhealthy(fpga.host(), noted), noted
    )
    device = host.device(fpga.CARD)
    assert device is not None
    assert device.fault == "2 fatal errors"


def node(
    host: model.HostState, address: str = fpga.REGION
) -> providers.ProviderNode:
    tree = tree_builder.build_tree(fpga.ROOT, host, policy.Policy())
    found = tree.node(names.provider_uuid(fpga.ROOT.uuid, address))
    assert found is not None
    return found


def test_a_drained_device_keeps_its_counters_and_offers_nothing() -> None:
    before, after = (
        node(host)
        for host in (
            fpga.host(),
            conditions.mark_drains(fpga.host(), said(fpga.CARD)),
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
    """Draw a host and drains: of its devices, their functions, others."""
    host = draw(strategies.hosts())
    if draw(st.booleans()):
        card, region = fpga.card(), fpga.region(slot=fpga.VF)
        host = dataclasses.replace(host, devices=(*host.devices, card, region))
    known = [
        name
        for device in host.devices
        for name in (device.address, *device.slots, *device.members)
    ]
    others = st.one_of(strategies.pci_addresses, st.sampled_from(["mtty"]))
    addresses = draw(
        st.sets(st.one_of(st.sampled_from(known), others) if known else others)
    )
    return host, {
        address: model.Drain(address=address, reason=draw(st.text(max_size=9)))
        for address in addresses
    }


@settings(deadline=None)
@given(drained_hosts())
def test_marks_change_nothing_but_the_word(
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
    meant = {address_at(host, address) for address in drained}
    assert {d.address for d in marked.devices if d.drain} == {
        d.address for d in host.devices if meant & {d.address, d.parent}
    } - {None}
