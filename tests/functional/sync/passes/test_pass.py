# SPDX-License-Identifier: Apache-2.0
"""A pass registers hosts, retries, and reports errors."""

import dataclasses
import logging
import socket
import threading

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.model import names
from placement_sync.client import calls, cloud_client, resource_providers
from placement_sync.sync import sync_pass
from tests.functional.sync.support import faults, servers
from tests.support import strategies

ROOT = strategies.ROOT
HOST = model.HostState(
    devices=(
        strategies.card("0000:3b:00.0", 4),
        strategies.card("0000:41:00.0", 4, 4),
    )
)
TREE = tree_builder.build_tree(ROOT, HOST, policy.DeviceRules())


def register(server: servers.Server) -> None:
    body = {"uuid": ROOT.uuid, "name": ROOT.name}
    server.call("POST", "/resource_providers", body)


def new_pass(url: str) -> sync_pass.Synchronizer:
    return sync_pass.Synchronizer(
        resource_providers.PlacementClient(cloud_client.from_endpoint(url)),
        sleep=lambda _: None,
    )


def test_an_unregistered_host_is_a_problem(
    placement: servers.Server,
) -> None:
    result = new_pass(placement.url).run(TREE, HOST)
    [problem] = result.problems
    assert problem.where == ROOT.name
    assert "not registered" in problem.reason
    assert (result.calls, result.writes, result.is_ok) == ((), 0, False)


def test_a_host_name_with_another_uuid_is_a_problem(
    placement: servers.Server,
) -> None:
    """The compute node was registered again, or there are two."""
    other = dataclasses.replace(
        ROOT, uuid="1f2e3d4c-0000-4000-8000-000000000009"
    )
    register(placement)
    tree = tree_builder.build_tree(other, HOST, policy.DeviceRules())
    result = new_pass(placement.url).run(tree, HOST, create_root=True)
    [problem] = result.problems
    assert ROOT.uuid in problem.reason
    assert result.calls == ()


def test_each_call_is_logged_once(
    placement: servers.Server, caplog: pytest.LogCaptureFixture
) -> None:
    def list_own() -> list[str]:
        # A command of another test may have asked for the libraries' lines.
        return [
            record.getMessage()
            for record in caplog.records
            if record.name.startswith("placement_sync.")
        ]

    register(placement)
    synchronizer = new_pass(placement.url)
    with caplog.at_level(logging.INFO, "placement_sync"):
        result = synchronizer.run(TREE, HOST)
        assert list_own() == [str(call) for call in result.calls]
        caplog.clear()
        synchronizer.run(TREE, HOST)
        assert list_own() == []


def test_beside_nova_compute_nothing_is_deleted(
    placement: servers.Server,
) -> None:
    """Its resource tracker would fail: it caches the provider."""
    register(placement)
    synchronizer = new_pass(placement.url)
    synchronizer.run(TREE, HOST)
    host = model.HostState(devices=HOST.devices[:1])
    tree = tree_builder.build_tree(ROOT, host, policy.DeviceRules())
    result = synchronizer.run(tree, host, is_shared=True)
    assert result.is_ok and result.present == {n.uuid for n in TREE.nodes}
    assert not any(isinstance(c, calls.DeleteProvider) for c in result.calls)
    gone = f"/resource_providers/{TREE.nodes[1].uuid}"
    inventories = placement.call("GET", f"{gone}/inventories")["inventories"]
    assert inventories["VGPU"]["reserved"] == inventories["VGPU"]["total"]
    traits = placement.call("GET", f"{gone}/traits")["traits"]
    assert names.MISSING_TRAIT in traits
    again = synchronizer.run(tree, host, is_shared=True)
    assert (again.reads, again.writes) == (1, 0)
    alone = synchronizer.run(tree, host)
    assert [type(call) for call in alone.calls] == [calls.DeleteProvider]


def test_a_standard_trait_newer_than_placement_is_left_out(
    placement: servers.Server,
) -> None:
    register(placement)
    newer = dataclasses.replace(
        TREE,
        nodes=tuple(
            dataclasses.replace(n, traits=n.traits | {"HW_FROM_THE_FUTURE"})
            for n in TREE.nodes
        ),
    )
    synchronizer = new_pass(placement.url)
    first = synchronizer.run(newer, HOST)
    assert first.is_ok
    assert first.changed == {node.uuid for node in TREE.nodes}
    again = synchronizer.run(newer, HOST)
    assert (again.reads, again.writes) == (1, 0)
    assert new_pass(placement.url).run(TREE, HOST).writes == 0


def test_a_deleted_trait_is_created_again(
    placement: servers.Server,
) -> None:
    """Existing traits are cached until Placement refuses one."""
    register(placement)
    synchronizer = new_pass(placement.url)
    synchronizer.run(TREE, HOST)
    trait = strategies.profile_trait("P-2")
    [second] = [n for n in TREE.nodes if trait in n.traits]
    without = dataclasses.replace(
        TREE,
        nodes=tuple(
            dataclasses.replace(n, traits=n.traits - {trait})
            for n in TREE.nodes
        ),
    )
    synchronizer.run(without, HOST)
    placement.call("DELETE", f"/traits/{trait}")
    result = synchronizer.run(TREE, HOST)
    assert result.is_ok
    assert result.changed == {second.uuid}


def test_an_unreachable_placement_is_an_error_after_retries() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        waits: list[float] = []
        synchronizer = sync_pass.Synchronizer(
            resource_providers.PlacementClient(
                cloud_client.from_endpoint(url)
            ),
            sleep=waits.append,
            chance=lambda: 1.0,
        )
        with pytest.raises(errors.ServiceError):
            synchronizer.run(TREE, HOST)
    assert waits == [1.0, 3.0, 9.0]
    assert len(waits) == sync_pass.ATTEMPTS - 1


def test_one_provider_s_failure_does_not_stop_the_others(
    placement: servers.Server,
) -> None:
    """Placement always fails for the first provider only."""
    register(placement)
    first, second = TREE.nodes
    with faults.Proxy(placement.url).running() as proxy:
        synchronizer = new_pass(proxy.url)
        proxy.arm(
            faults.Fault(kind="500", at=1, is_lasting=True, where=first.uuid)
        )
        with pytest.raises(errors.ServiceError):
            synchronizer.run(TREE, HOST)
        rows = placement.call("GET", f"/resource_providers/{second.uuid}")
        assert isinstance(rows, dict)
        inventories = placement.call(
            "GET", f"/resource_providers/{second.uuid}/inventories"
        )
        assert isinstance(inventories, dict)
        assert inventories["inventories"]
        proxy.arm(None)
        assert synchronizer.run(TREE, HOST).is_ok


def test_a_missing_role_is_a_problem(
    placement: servers.Server,
) -> None:
    register(placement)
    with faults.Proxy(placement.url).running() as proxy:
        proxy.arm(
            faults.Fault(kind="403", at=1, is_lasting=True, where="POST ")
        )
        result = new_pass(proxy.url).run(TREE, HOST)
    assert {p.where for p in result.problems} == {n.name for n in TREE.nodes}
    assert all("role" in p.reason for p in result.problems)


def test_one_pass_never_runs_twice_at_once(
    placement: servers.Server,
) -> None:
    register(placement)
    synchronizer = new_pass(placement.url)
    results: list[sync_pass.PassResult] = []

    def run() -> None:
        results.append(synchronizer.run(TREE, HOST))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(bool(r.calls) for r in results) == [False] * 3 + [True]
    assert not [r for r in placement.requests() if r.status >= 400]
