# SPDX-License-Identifier: Apache-2.0
"""Faults are over when the device itself shows it."""

import dataclasses
from collections.abc import Collection

import pytest

from nova_accel import model
from nova_accel.inventory import conditions
from tests.support import strategies
from tests.support.fpga import card


@pytest.mark.parametrize("visible", [card.NEW, card.OLD, "", None])
@pytest.mark.parametrize("failed", [card.OLD, None])
@pytest.mark.parametrize("fresh", [None, {card.REGION}, {card.CARD}])
def test_a_region_heals_once_it_is_read_with_another_function(
    visible: str | None, failed: str | None, fresh: Collection[str] | None
) -> None:
    fault = model.Fault(
        address=card.REGION, reason="it failed", function=failed
    )
    host, healed = conditions.mark_faults(
        card.host(card.region(visible)), {card.REGION: fault}, fresh
    )
    is_read = fresh is None or card.REGION in fresh
    is_healed = is_read and (visible, failed) == (card.NEW, card.OLD)
    assert healed == ({card.REGION} if is_healed else set())
    device = host.device(card.REGION)
    assert device and bool(device.fault) is not is_healed


@pytest.mark.parametrize("slot", ["0000:3b:00.4", "slot-0"])
def test_a_device_is_found_by_the_address_of_a_function(slot: str) -> None:
    """Names of slots are no addresses: several cards have the same ones."""
    first, second = (
        dataclasses.replace(strategies.card(address, 1), slots=(slot,))
        for address in ("0000:3b:00.0", "0000:5e:00.0")
    )
    host = model.HostState(devices=(first,))
    expected = None if slot == "slot-0" else first
    assert conditions.find_device(host, slot) is expected
    assert conditions.find_device(host, first.address) is first
    both = model.HostState(devices=(first, second))
    assert conditions.find_device(both, second.address) is second
