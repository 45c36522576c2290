# SPDX-License-Identifier: Apache-2.0
"""Malformed amounts in Placement's answers are errors, never numbers."""

import pytest

from filters.placement import queries, summaries
from nova_accel import errors
from nova_accel.model import names, providers
from placement_sync.client import provider_records

CARD = providers.Provider(uuid="card", capacities={})


@pytest.mark.parametrize("amount", [float("inf"), "eight", None, [1]])
@pytest.mark.parametrize("part", ["inventories", "allocations"])
def test_a_provider_with_a_malformed_amount_is_not_known(
    part: str, amount: object
) -> None:
    inventory = providers.Inventory(total=8).as_dict()
    answer = {
        "inventories": {"VGPU": inventory},
        "traits": [names.OWNER_TRAIT],
        "allocations": {"server": {"resources": {"VGPU": 1}}},
        "resource_provider_generation": 1,
    }
    malformed: dict[str, dict[str, object]] = {
        "inventories": {"VGPU": {**inventory, "total": amount}},
        "allocations": {"server": {"resources": {"VGPU": amount}}},
    }

    fetch = {
        "inventories": provider_records.fetch_provider,
        "allocations": queries.fetch_allocations,
    }[part]
    with pytest.raises(errors.ServiceError):
        fetch(lambda path: {**answer, part: malformed[part]}, CARD)


@pytest.mark.parametrize("amount", [float("inf"), "eight", None, [1]])
@pytest.mark.parametrize("what", ["capacity", "used"])
def test_a_summary_with_a_malformed_amount_is_an_error(
    what: str, amount: object
) -> None:
    summary: dict[str, object] = {
        "resources": {"VGPU": {"capacity": 8, "used": 0, what: amount}},
        "traits": [],
        "parent_provider_uuid": None,
        "root_provider_uuid": "root",
    }

    with pytest.raises(errors.ServiceError):
        summaries.ProviderSummaries({"card": summary})["card"]


@pytest.mark.parametrize("amount", [float("inf"), "eight", None, [1]])
def test_a_server_with_a_malformed_amount_is_not_known(
    amount: object,
) -> None:
    answer = {"allocations": {"card": {"resources": {"VGPU": amount}}}}

    with pytest.raises(errors.ServiceError):
        provider_records.fetch_consumer(lambda _: answer, "server")
