# SPDX-License-Identifier: Apache-2.0
"""A pass changes only its own host in trees that contain several."""

from collections.abc import Callable

import pytest

from nova_accel.model import names, providers
from tests.functional.sync.passes.test_lost_and_found import (
    OTHER,
    ROOT,
    A,
    B,
    Site,
    host_of,
    uuid_of,
)
from tests.functional.sync.support import lives, servers
from tests.support import strategies

RACK = "1f2e3d4c-0000-4000-8000-0000000000aa"
OTHER_CARD = names.provider_uuid(OTHER.uuid, B)


@pytest.fixture
def site(placement: servers.Server) -> Site:
    """Return two hosts with a card each; the other host's card is free."""
    site = Site(placement)
    site.run(host_of(strategies.card(A, 4)))
    site.operator.create(
        OTHER_CARD, names.provider_name(OTHER.name, B), OTHER.uuid
    )
    free = providers.Inventory(total=4, max_unit=4)
    site.operator.put_inventories(OTHER_CARD, {"VGPU": free})
    site.operator.put_traits(OTHER_CARD, {*strategies.OWNED})
    return site


def move(site: Site, root: providers.ProviderRoot, parent: str) -> None:
    body = {"name": root.name, "parent_provider_uuid": parent}
    site.operator.call("PUT", f"{lives.PATH}/{root.uuid}", body)


def below_this_host(site: Site) -> None:
    move(site, OTHER, ROOT.uuid)


def above_this_host(site: Site) -> None:
    move(site, ROOT, OTHER.uuid)


def below_the_same_rack(site: Site) -> None:
    site.operator.create(RACK, "rack", None)
    move(site, ROOT, RACK)
    move(site, OTHER, RACK)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    "command", [below_this_host, above_this_host, below_the_same_rack]
)
def test_another_host_in_the_same_tree_keeps_its_own(
    site: Site, command: Callable[[Site], None], is_restarted: bool
) -> None:
    command(site)
    if is_restarted:
        site.restart()
    before = site.operator.tables.read(OTHER, ROOT) or None
    assert site.run(host_of(strategies.card(A, 4))).writes == 0
    assert (site.operator.tables.read(OTHER, ROOT) or None) == before
    assert site.run(host_of()).is_ok  # Only this host's card is deleted.
    records = site.operator.call("GET", lives.PATH)["resource_providers"]
    uuids = {record["uuid"] for record in records}
    assert OTHER_CARD in uuids and uuid_of(A) not in uuids


def test_a_provider_below_novas_own_is_still_managed(
    site: Site,
) -> None:
    """The device has no address that proves its uuid."""
    odd = names.provider_uuid(ROOT.uuid, "mtty")
    nova = names.provider_uuid(ROOT.uuid, "nova")
    site.operator.create(nova, f"{ROOT.name}_pci_0000_82_00_0", ROOT.uuid)
    site.operator.create(odd, names.provider_name(ROOT.name, "mtty"), nova)
    site.operator.put_traits(odd, {*strategies.OWNED})
    assert site.run(host_of(strategies.card(A, 4))).changed == {odd}
    records = site.operator.call("GET", lives.PATH)["resource_providers"]
    uuids = {record["uuid"] for record in records}
    assert nova in uuids and odd not in uuids
