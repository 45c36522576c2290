# SPDX-License-Identifier: Apache-2.0
"""NVLinks between the devices of a guest are read from the host."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from nova_accel import errors, model
from nova_accel.model import names
from tests.support.hosts import shapes
from tests.unit.virt_hooks.guest.test_hostdev import WHOLE
from virt_hooks.guest.topology import host_tree, nvlinks

A, B, C = "0000:19:00.0", "0000:2a:00.0", "0000:3b:00.0"
CARD = shapes.whole_card(A, vendor_id="10de")
UNREAD = (names.NVLINK_PREFIX,)


def card(address: str, *peers: str, **fields: Any) -> model.Device:
    traits = frozenset(map(names.nvlink_trait, peers))
    return dataclasses.replace(CARD, address=address, traits=traits, **fields)


def refuse(path: str) -> Any:
    raise errors.ServiceError("GET", path, 503, "down")


def read(
    devices: Iterable[model.Device], get: Any = refuse
) -> host_tree.Peers:
    """Return the peers of a guest with A, B and C."""
    claims = [
        dataclasses.replace(
            WHOLE, handle=f"on {address}", device=address, provider=address
        )
        for address in (A, B, C)
    ]
    return nvlinks.NvlinkReader(lambda: devices, get).read(claims)


PAIR = {f"on {A}": {f"on {B}"}, f"on {B}": {f"on {A}"}}


def test_one_end_of_a_link_is_enough() -> None:
    assert read([card(A, B), card(B), card(C, "0000:99:00.0")]) == PAIR


def test_cards_on_nvswitches_reach_each_other() -> None:
    switched = frozenset({names.NVLINK_SWITCH})
    cards = [
        dataclasses.replace(card(address), traits=switched)
        for address in (A, B)
    ]
    assert read([*cards, card(C)]) == PAIR


def test_two_partitions_of_one_card_are_no_peers() -> None:
    first, second = (card(address, B, parent=B) for address in (A, C))
    assert read([first, card(B), second]) == {}


def test_another_vendor_and_an_unknown_device_have_none() -> None:
    assert read([card(A, B, vendor_id="1002")]) == {}


def test_placement_has_the_links_of_a_card_that_nvml_does_not_see() -> None:
    def get(path: str) -> Any:
        assert path == f"/resource_providers/{A.replace(':', '%3A')}/traits"
        return {
            "traits": [names.nvlink_trait(B)],
            "resource_provider_generation": 1,
        }

    cards = [card(A, unread_traits=UNREAD), card(B), card(C)]
    assert read(cards, get) == PAIR


def test_links_that_can_not_be_read_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert read([card(A, unread_traits=UNREAD), card(B), card(C)]) == {}
    assert f"the NVLinks of {A} are unknown" in caplog.text
