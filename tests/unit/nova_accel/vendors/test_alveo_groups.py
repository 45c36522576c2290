# SPDX-License-Identifier: Apache-2.0
"""Proves that unreadable and grouped Alveo cards are not offered."""

import pathlib

from tests.hosts import look
from tests.unit.nova_accel.vendors.test_alveo import (
    U250,
    U250_USER,
    read,
    u250,
)


def test_a_card_that_cant_be_read_is_unknown(tmp_path: pathlib.Path) -> None:
    """Placement keeps the providers of the card and of its region."""
    path = f"bus/pci/devices/{U250}/vendor"
    state = read(tmp_path, u250(), faults={path: "EIO"})
    assert state.device(U250) is None
    assert U250 in state.unknown


def test_two_cards_in_one_group_are_not_given_to_two_guests(
    tmp_path: pathlib.Path,
) -> None:
    loose = {"driver": "vfio-pci", "group": 9}
    first = u250(**loose)
    second = [
        {**f, "address": f["address"].replace("d8", "d9"), "group": group}
        for f, group in zip(first, (8, 9), strict=True)
    ]
    state = read(tmp_path, [*first, *second])
    (offered,) = (device for device in state.devices if device.counters)
    assert offered.slots == (U250_USER,)
    assert "shares its IOMMU group" in look.reasons(state, "0000:d9:00.0")
