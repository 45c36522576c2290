# SPDX-License-Identifier: Apache-2.0
"""Changes by PlacementClient in a real Placement."""

import uuid

import pytest

from nova_accel import errors
from nova_accel.model import names, providers
from placement_sync.client import calls, resource_providers, rest
from tests.functional.sync.support import servers
from tests.functional.sync.support.one_card import (
    CARD,
    CARD_NAME,
    CLASS,
    CREATE,
    FOREIGN,
    ROOT,
    TRAIT,
    allocate,
    put,
    reads,
    rename,
)


@pytest.mark.parametrize("call", CREATE[3:])
def test_a_change_made_twice_is_made_once(
    ours: resource_providers.PlacementClient,
    host: servers.Server,
    call: calls.Call,
) -> None:
    for each in CREATE:
        ours.apply(each)
    before = ours.fetch(ROOT).tree
    ours.apply(call)
    assert ours.fetch(ROOT).tree == before


def test_what_another_writer_made_counts_as_made(
    ours: resource_providers.PlacementClient, host: servers.Server
) -> None:
    ours.fetch(ROOT)
    other = resource_providers.PlacementClient(rest.from_endpoint(host.url))
    for call in CREATE:
        other.apply(call)
    for call in CREATE:
        ours.apply(call)
    assert ours.fetch(ROOT).tree == other.fetch(ROOT).tree


@pytest.mark.parametrize(
    "call",
    [
        calls.CreateProvider(uuid=CARD, name="other", parent=ROOT),
        calls.CreateProvider(uuid=CARD, name=CARD_NAME, parent=FOREIGN),
        calls.CreateProvider(
            uuid=str(uuid.UUID(int=8)), name=CARD_NAME, parent=ROOT
        ),
    ],
)
def test_another_provider_in_the_way_is_a_conflict(
    ours: resource_providers.PlacementClient, card: str, call: calls.Call
) -> None:
    with pytest.raises(errors.ServiceError) as caught:
        ours.apply(call)
    assert caught.value.is_conflict
    assert caught.value.code == "placement.duplicate_name"


def test_a_root_is_made_without_parent(
    ours: resource_providers.PlacementClient,
) -> None:
    own = str(uuid.UUID(int=50))
    ours.apply(calls.CreateProvider(uuid=own, name="metal", parent=""))
    found = providers.ProviderRoot(name="metal", uuid=own)
    assert ours.fetch(own).root == found
    assert ours.find_root("metal") == found


def test_find_root_by_any_name(
    ours: resource_providers.PlacementClient,
) -> None:
    assert ours.find_root("host") == providers.ProviderRoot(
        name="host", uuid=ROOT
    )
    assert ours.find_root("a b&name=host") is None


def test_a_provider_gets_its_name_and_parent_again(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    before = ours.fetch(ROOT).tree
    rename(host)
    assert ours.fetch(ROOT).tree != before
    ours.apply(calls.UpdateProvider(uuid=card, name=CARD_NAME, parent=ROOT))
    host.clear()
    assert ours.fetch(ROOT).tree == before
    assert reads(host) == 1


def test_traits_of_others_stay(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    host.call("PUT", "/traits/CUSTOM_RACK_7")
    put(host, card, "traits", [names.OWNER_TRAIT, TRAIT, "CUSTOM_RACK_7"])
    ours.fetch(ROOT)
    ours.apply(
        calls.ChangeTraits(
            uuid=card,
            name=CARD_NAME,
            added=frozenset({"HW_GPU_API_CUDA"} & set()),
            removed=frozenset({TRAIT}),
        )
    )
    node = ours.fetch(ROOT).tree.node(card)
    assert node
    assert node.traits == {names.OWNER_TRAIT, "CUSTOM_RACK_7"}


@pytest.mark.parametrize("call", CREATE[4:])
def test_a_change_of_what_others_changed_is_a_conflict(
    ours: resource_providers.PlacementClient,
    host: servers.Server,
    card: str,
    call: calls.Call,
) -> None:
    """And nothing is lost: it is read anew before the next change."""
    put(host, card, "inventories", {CLASS: {"total": 48, "reserved": 3}})
    with pytest.raises(errors.ServiceError) as caught:
        ours.apply(call)
    assert caught.value.is_conflict
    assert not caught.value.is_transient
    assert caught.value.code == "placement.concurrent_update"
    with pytest.raises(errors.ServiceError):
        ours.apply(call)
    ours.fetch(ROOT)
    ours.apply(call)


def test_deleted_twice(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    call = calls.DeleteProvider(uuid=card, name=CARD_NAME)
    ours.apply(call)
    ours.apply(call)
    assert ours.fetch(ROOT).tree.nodes == ()


def test_in_use_is_not_deleted(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    allocate(host, card, 1)
    with pytest.raises(errors.ServiceError) as caught:
        ours.apply(calls.DeleteProvider(uuid=card, name=CARD_NAME))
    assert caught.value.is_conflict
    assert caught.value.code == "placement.resource_provider.inuse"


def test_a_change_of_what_is_gone(
    ours: resource_providers.PlacementClient,
) -> None:
    with pytest.raises(errors.ServiceError, match="is gone") as caught:
        ours.apply(CREATE[4])
    assert caught.value.status == 404
    assert not caught.value.is_transient
