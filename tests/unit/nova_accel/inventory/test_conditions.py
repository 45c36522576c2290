# SPDX-License-Identifier: Apache-2.0
"""Faults are over when the device itself shows it."""

from collections.abc import Collection

import pytest

from nova_accel import model
from nova_accel.inventory import conditions
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
