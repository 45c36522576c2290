# SPDX-License-Identifier: Apache-2.0
"""Fixtures: Placement on SQLite and MariaDB, and one host with a card."""

import os
from collections.abc import Iterator

import pytest

from placement_sync.client import cloud_client, resource_providers
from tests.functional.sync.support import one_card, servers


@pytest.fixture(scope="session")
def _sqlite(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    with servers.start_sqlite(tmp_path_factory.mktemp("placement")) as server:
        yield server


@pytest.fixture(scope="session")
def _mariadb(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    if reason := servers.missing_mariadb():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("db")
    with (
        servers.mariadb(place) as database,
        servers.start(database, place / "placement.log") as server,
    ):
        yield server


@pytest.fixture
def placement(_sqlite: servers.Server) -> servers.Server:
    """Return an empty Placement on sqlite."""
    _sqlite.empty()
    return _sqlite


@pytest.fixture
def mariadb_placement(_mariadb: servers.Server) -> servers.Server:
    """Return an empty Placement on MariaDB."""
    _mariadb.empty()
    return _mariadb


@pytest.fixture(
    params=["sqlite", pytest.param("mariadb", marks=pytest.mark.long)]
)
def any_placement(request: pytest.FixtureRequest) -> servers.Server:
    """Return a Placement on each database."""
    name = "placement" if request.param == "sqlite" else "mariadb_placement"
    server: servers.Server = request.getfixturevalue(name)
    return server


@pytest.fixture
def placement_url(placement: servers.Server) -> str:
    return placement.url


@pytest.fixture
def mariadb_placement_url(mariadb_placement: servers.Server) -> str:
    return mariadb_placement.url


@pytest.fixture
def clock() -> one_card.Clock:
    return one_card.Clock()


@pytest.fixture
def host(any_placement: servers.Server) -> servers.Server:
    """Return Placement with a compute node and a provider of Nova's own."""
    one_card.add(any_placement, one_card.ROOT, "host")
    foreign = "host_0000:81:00.0"
    one_card.add(any_placement, one_card.FOREIGN, foreign, one_card.ROOT)
    any_placement.clear()
    return any_placement


@pytest.fixture
def client(
    host: servers.Server, clock: one_card.Clock
) -> resource_providers.PlacementClient:
    return resource_providers.PlacementClient(
        cloud_client.from_endpoint(host.url), clock
    )


@pytest.fixture
def card(
    client: resource_providers.PlacementClient, host: servers.Server
) -> str:
    """Return the uuid of a card's new provider."""
    for call in one_card.CREATE:
        client.apply(call)
    client.fetch(one_card.ROOT)
    host.clear()
    return one_card.CARD
