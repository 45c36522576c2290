# SPDX-License-Identifier: Apache-2.0
"""Hosts that the zone, the project or the hints of a server exclude."""

from collections.abc import Mapping

import pytest

from placement_sync.client import nova_api
from placement_sync.fleet.explain import server_request

SERVER = nova_api.Server(uuid="u", name="vm", project="films", status="ERROR")
SERVICES = {"node-1": "host1", "node-2": "host2"}


def aggregate(
    *hosts: str, zone: str = "", **metadata: str
) -> server_request.Aggregate:
    return server_request.Aggregate(
        name="gpus",
        zone=zone,
        hosts=frozenset(hosts),
        metadata=metadata,
    )


def explain(
    *aggregates: server_request.Aggregate,
    zone: str = "",
    hints: Mapping[str, object] | None = None,
    policy: str = "",
    **placed: str,
) -> dict[str, str]:
    """Return the reasons of the hosts without the server."""
    return server_request.explain_exclusions(
        server_request.ServerRequest(
            server=SERVER, zone=zone, hints=hints or {}
        ),
        server_request.HostGroups(
            services=SERVICES,
            aggregates=aggregates,
            placed={name: frozenset({host}) for name, host in placed.items()},
            policy=policy,
        ),
    )


def test_a_request_without_conditions_excludes_no_host() -> None:
    others = aggregate("host1", zone="east"), aggregate("host2", ssd="true")
    assert explain(*others) == {}


def test_hosts_of_other_zones_are_excluded() -> None:
    east = aggregate("host1", zone="east")
    assert explain(east, zone="east") == {
        "node-2": "the host is in zone nova, the server was requested in east"
    }
    assert list(explain(east, zone="nova")) == ["node-1"]


def test_hosts_of_other_projects_are_excluded() -> None:
    own = aggregate("host1", filter_tenant_id="films, games")
    other = aggregate("host2", filter_tenant_id1="games")
    assert explain(own, other) == {
        "node-2": "aggregate gpus is of other projects"
    }


@pytest.mark.parametrize(
    ("hint", "policy", "excluded"),
    [
        ("different_host", "", "node-1"),
        ("same_host", "", "node-2"),
        ("group", "anti-affinity", "node-1"),
        ("group", "affinity", "node-2"),
        ("group", "soft-affinity", None),
    ],
)
def test_hints_exclude_hosts(
    hint: str, policy: str, excluded: str | None
) -> None:
    """host1 has the server, or the group's member, that the hint names."""
    reasons = explain(hints={hint: "v"}, policy=policy, **{hint: "host1"})
    assert [*reasons] == ([excluded] if excluded else [])


def test_hints_that_are_not_replayed_are_noted() -> None:
    request = server_request.ServerRequest(
        server=SERVER, hints={"query": "x", "group": "g"}
    )
    assert "replayed: query" in server_request.list_notes(request)[-1]


def test_a_server_of_a_volume_needs_no_root_disk() -> None:
    flavor = nova_api.ServerFlavor(
        vcpus=2, memory_mb=512, root_gb=20, other_gb=3, extra_specs={"a": "b"}
    )
    for is_volume_backed, disk_gb in ((True, 3), (None, 23)):
        server = nova_api.Server(
            uuid="u", flavor=flavor, is_volume_backed=is_volume_backed
        )
        needs = server_request.ServerRequest(server=server).simulated.needs
        assert needs == {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": disk_gb}
