# SPDX-License-Identifier: Apache-2.0
"""PlacementClient applies each kind of call to a real Placement."""

import uuid

import pytest

from nova_accel import errors
from nova_accel.model import names, providers
from placement_sync.client import calls, cloud_client, resource_providers
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
)


@pytest.mark.parametrize("call", CREATE[3:])
def test_a_repeated_call_changes_nothing(
    client: resource_providers.PlacementClient,
    host: servers.Server,
    call: calls.Call,
) -> None:
    for each in CREATE:
        client.apply(each)
    before = client.fetch(ROOT).tree
    client.apply(call)
    assert client.fetch(ROOT).tree == before


def test_calls_of_another_writer_count(
    client: resource_providers.PlacementClient, host: servers.Server
) -> None:
    client.fetch(ROOT)
    other = resource_providers.PlacementClient(
        cloud_client.from_endpoint(host.url)
    )
    for call in CREATE:
        other.apply(call)
    for call in CREATE:
        client.apply(call)
    assert client.fetch(ROOT).tree == other.fetch(ROOT).tree


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
def test_a_used_name_or_uuid_is_a_conflict(
    client: resource_providers.PlacementClient, card: str, call: calls.Call
) -> None:
    with pytest.raises(errors.ServiceError) as caught:
        client.apply(call)
    assert caught.value.is_conflict
    assert caught.value.code == "placement.duplicate_name"


def test_a_root_is_made_without_parent(
    client: resource_providers.PlacementClient,
) -> None:
    own = str(uuid.UUID(int=50))
    client.apply(calls.CreateProvider(uuid=own, name="metal", parent=""))
    root = providers.ProviderRoot(name="metal", uuid=own)
    assert client.fetch(own).root == root
    assert client.find_root("metal") == root


def test_find_root_by_any_name(
    client: resource_providers.PlacementClient,
) -> None:
    assert client.find_root("host") == providers.ProviderRoot(
        name="host", uuid=ROOT
    )
    assert client.find_root("a b&name=host") is None


def test_foreign_traits_are_retained(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    host.call("PUT", "/traits/CUSTOM_RACK_7")
    put(host, card, "traits", [names.OWNER_TRAIT, TRAIT, "CUSTOM_RACK_7"])
    client.fetch(ROOT)
    client.apply(
        calls.ChangeTraits(
            uuid=card,
            name=CARD_NAME,
            added=frozenset({"HW_GPU_API_CUDA"} & set()),
            removed=frozenset({TRAIT}),
        )
    )
    node = client.fetch(ROOT).tree.node(card)
    assert node
    assert node.traits == {names.OWNER_TRAIT, "CUSTOM_RACK_7"}


@pytest.mark.parametrize("call", CREATE[4:])
def test_a_stale_generation_is_a_conflict(
    client: resource_providers.PlacementClient,
    host: servers.Server,
    card: str,
    call: calls.Call,
) -> None:
    """No change is lost: the provider is read before the next call."""
    put(host, card, "inventories", {CLASS: {"total": 48, "reserved": 3}})
    with pytest.raises(errors.ServiceError) as caught:
        client.apply(call)
    assert caught.value.is_conflict
    assert not caught.value.is_transient
    assert caught.value.code == "placement.concurrent_update"
    with pytest.raises(errors.ServiceError):
        client.apply(call)
    client.fetch(ROOT)
    client.apply(call)


def test_a_repeated_delete_changes_nothing(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    call = calls.DeleteProvider(uuid=card, name=CARD_NAME)
    client.apply(call)
    client.apply(call)
    assert client.fetch(ROOT).tree.nodes == ()


def test_a_provider_in_use_is_not_deleted(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    allocate(host, card, 1)
    with pytest.raises(errors.ServiceError) as caught:
        client.apply(calls.DeleteProvider(uuid=card, name=CARD_NAME))
    assert caught.value.is_conflict
    assert caught.value.code == "placement.resource_provider.inuse"


def test_a_change_of_a_deleted_provider(
    client: resource_providers.PlacementClient,
) -> None:
    with pytest.raises(errors.ServiceError, match="is gone") as caught:
        client.apply(CREATE[4])
    assert caught.value.status == 404
    assert not caught.value.is_transient
