# SPDX-License-Identifier: Apache-2.0
"""Inspections in a real Ironic, up to candidates in a real Placement."""

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from nova.compute import provider_tree
from nova.virt.ironic import driver

from nova_accel.host.sysfs import fs
from nova_accel.inventory import node_counts
from tests.functional.ironic import ironic_service
from tests.functional.sync.support import one_card, servers
from tests.hosts import look, recorded
from tests.support import golden
from virt_hooks.ironic import collector, node_report

Nodes = Mapping[str, ironic_service.BareMetal]
# Without --whole the described hosts are left out.
HOSTS = (
    *(f"recorded-{name}" for name in recorded.NAMES),
    *(pytest.param(name, marks=pytest.mark.long) for name in look.NAMES),
)
FOREIGN = ("CUSTOM_RACK_7", "CUSTOM_GPU_LAB", "HW_CPU_X86_VMX")
T4X2 = "CUSTOM_GPU_NVIDIA_T4_X2"


def data_of(source: fs.FileSource) -> dict[str, Any]:
    """Return what the agent sends of a machine with these files."""
    report = collector.read_report(source)
    assert not report.error
    return {collector.KEY: node_report.to_document(report)}


def read_host(name: str, place: pathlib.Path) -> dict[str, Any]:
    if name.startswith("recorded-"):
        return data_of(recorded.load(name.removeprefix("recorded-")))
    root = pathlib.Path(tempfile.mkdtemp(dir=place))
    return data_of(fs.DiskSource(look.make(name, root)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def inspected(
    request: pytest.FixtureRequest,
    ironic: ironic_service.Ironic,
    place: pathlib.Path,
) -> Nodes:
    """Return an inspected node of each host that a test of this run has."""
    calls = [getattr(i, "callspec", None) for i in request.session.items]
    hosts = [c.params["host"] for c in calls if c and "host" in c.params]
    nodes = {name: ironic.create() for name in dict.fromkeys(hosts)}
    for node in nodes.values():
        ironic.begin_inspection(node)
    for name, node in nodes.items():
        ironic.post_inspection(node, read_host(name, place))
        ironic.await_state(node, "manageable")
    return nodes


@pytest.fixture(scope="module")
def t4s(place: pathlib.Path) -> dict[str, Any]:
    """Return the data of a machine with two T4s."""
    return read_host("t4-mdev", place)


def without_devices(data: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the data of an inspection after some cards have left."""
    document = dict(data[collector.KEY])
    return {
        collector.KEY: {**document, "devices": document["devices"][count:]}
    }


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_gets_its_traits(
    ironic: ironic_service.Ironic, inspected: Nodes, host: str
) -> None:
    node = ironic.show(inspected[host])
    outcome = {
        "resource_class": node["resource_class"],
        "traits": sorted(ironic.traits(inspected[host])),
        "accelerators": node["properties"]["accelerators"],
    }
    golden.check(
        golden.PLACE / "ironic" / f"{host}.json",
        json.dumps(outcome, indent=1) + "\n",
    )


@pytest.mark.parametrize("host", HOSTS)
def test_nova_offers_a_host_to_flavors(
    ironic: ironic_service.Ironic,
    inspected: Nodes,
    nova_driver: driver.IronicDriver,
    placement: servers.Server,
    host: str,
) -> None:
    node = inspected[host]
    if not ironic.show(node)["resource_class"]:
        pytest.skip("it has no accelerator with ids")
    publish(nova_driver, placement, node)
    (resource_class,) = placement.call(
        "GET", f"/resource_providers/{node.uuid}/inventories"
    )["inventories"]
    counts = filter(node_counts.parse_count, ironic.traits(node))
    query = "&".join(f"required={trait}" for trait in counts)
    candidates = placement.call(
        "GET", f"/allocation_candidates?resources={resource_class}:1&{query}"
    )["provider_summaries"]
    assert node.uuid in candidates


def publish(
    nova_driver: driver.IronicDriver,
    placement: servers.Server,
    node: ironic_service.BareMetal,
) -> None:
    """Write what Nova's Ironic driver reports of a node to Placement."""
    tree = provider_tree.ProviderTree()
    tree.new_root(node.uuid, node.uuid)
    nova_driver.node_cache.pop(node.uuid, None)
    nova_driver.update_provider_tree(tree, node.uuid)
    published = tree.data(node.uuid)
    for name in (*published.inventory, *published.traits):
        if name.startswith("CUSTOM_"):
            kind = "traits" if name in published.traits else "resource_classes"
            placement.call("PUT", f"/{kind}/{name}")
    one_card.add(placement, node.uuid, node.uuid)
    one_card.put(
        placement,
        node.uuid,
        "inventories",
        {n: {**i, "reserved": 0} for n, i in published.inventory.items()},
    )
    one_card.put(placement, node.uuid, "traits", sorted(published.traits))


# -- traits of operators, and of cards that left -----------------------------


def test_a_card_that_left_takes_its_traits_with_it(
    ironic: ironic_service.Ironic, t4s: dict[str, Any]
) -> None:
    node = ironic.create()
    ironic.inspect(node, t4s)
    ironic.inspect(node, without_devices(t4s, 1))
    traits = ironic.traits(node)
    assert "CUSTOM_GPU_NVIDIA_T4_X1" in traits
    assert T4X2 not in traits
    ironic.inspect(node, without_devices(t4s, 2))
    assert ironic.traits(node) == set()


def test_traits_of_operators_survive(
    ironic: ironic_service.Ironic, t4s: dict[str, Any]
) -> None:
    node = ironic.create()
    ironic.set_traits(node, *FOREIGN)
    ironic.inspect(node, t4s)
    assert {*FOREIGN, T4X2} <= ironic.traits(node)
    ironic.inspect(node, without_devices(t4s, 2))
    assert ironic.traits(node) == {*FOREIGN}


def test_a_full_list_of_traits_drops_the_least_important(
    ironic: ironic_service.Ironic, t4s: dict[str, Any]
) -> None:
    node = ironic.create()
    own = [f"CUSTOM_OF_OPERATOR_{n}" for n in range(49)]
    ironic.set_traits(node, *own)
    ironic.inspect(node, t4s)
    assert ironic.traits(node) == {*own, T4X2}


def test_a_resource_class_is_not_replaced(
    ironic: ironic_service.Ironic, t4s: dict[str, Any]
) -> None:
    node = ironic.create(resource_class="gold")
    ironic.inspect(node, t4s)
    assert ironic.show(node)["resource_class"] == "gold"


def test_two_nodes_are_inspected_at_the_same_time(
    ironic: ironic_service.Ironic, t4s: dict[str, Any], place: pathlib.Path
) -> None:
    qats = read_host("qat", place)
    first, second = ironic.create(), ironic.create()
    for node in (first, second):
        ironic.begin_inspection(node)
    ironic.post_inspection(first, t4s)
    ironic.post_inspection(second, qats)
    for node in (first, second):
        ironic.await_state(node, "manageable")
    assert T4X2 in ironic.traits(first)
    assert T4X2 not in ironic.traits(second)
    assert "CUSTOM_QAT_INTEL_4XXX_X1" in ironic.traits(second)


# -- data that is missing or damaged ----------------------------------------

ROW = {"class": "030200", "vendor_id": "10de", "product_id": "1eb8"}
LARGE = {"kind": "GPU", "vendor_id": "10de", "product_id": "1eb8"}


@pytest.mark.parametrize(
    "data",
    [
        {"pci_devices": [{**ROW, "vendor_id": {"a": ["b" * 999] * 99}}] * 99},
        {"accelerators": {"version": 1, "devices": 5}, "pci_devices": []},
        {
            "accelerators": {
                "version": 1,
                "devices": [{**LARGE, "name": "n" * 255}] * 1024,
            }
        },
    ],
)
def test_any_data_leave_little_in_the_node(
    ironic: ironic_service.Ironic, data: dict[str, Any]
) -> None:
    node = ironic.create()
    ironic.inspect(node, data)
    assert len(json.dumps(ironic.show(node)["properties"])) < 70_000
    assert ironic.show(node)["last_error"] is None


# Ironic's options and those of Nova, which this process has, can't be in one.
HOOK = """
import json, sys, types
from virt_hooks.ironic import inspection_hook
task = types.SimpleNamespace(node=types.SimpleNamespace(uuid="metal-1"))
hook = inspection_hook.AcceleratorHook()
for data in json.loads(sys.argv[1]):
    hook.preprocess(task, data, {})
    hook(task, data, data)
"""


def test_odd_functions_end_no_inspection() -> None:
    """Not in an inspection: Ironic's own hook `accelerators` ends it."""
    data = [
        {key: odd}
        for key in ("pci_devices", "accelerators")
        for odd in (5, True, "10de:1eb8", {"0": ROW})
    ]
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", HOOK, json.dumps(data)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


class UnreadableSource(fs.DiskSource):
    """This machine, with directories that fail in an unexpected way."""

    def names(self, path: str) -> list[str]:
        raise RuntimeError(f"no {path}")


@pytest.fixture(params=["raised", "other version", "damaged", "none"])
def unusable(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if request.param == "raised":
        report = collector.read_report(UnreadableSource())
        assert "RuntimeError" in report.error
        yield {collector.KEY: node_report.to_document(report)}
    elif request.param == "other version":
        yield {collector.KEY: {"version": 2}}
    elif request.param == "damaged":
        yield {collector.KEY: {"version": 1, "devices": [{"kind": 1}]}}
    else:
        yield {}


def test_an_inspection_without_usable_data_changes_nothing(
    ironic: ironic_service.Ironic,
    t4s: dict[str, Any],
    unusable: dict[str, Any],
) -> None:
    node = ironic.create()
    ironic.inspect(node, t4s)
    before = ironic.traits(node)
    ironic.inspect(node, unusable)
    assert ironic.traits(node) == before


def test_an_incomplete_reading_removes_nothing(
    ironic: ironic_service.Ironic, t4s: dict[str, Any]
) -> None:
    node = ironic.create()
    ironic.inspect(node, t4s)
    before = ironic.traits(node)
    fewer = without_devices(t4s, 1)
    fewer[collector.KEY]["is_complete"] = False
    ironic.inspect(node, fewer)
    assert ironic.traits(node) == before


REDFISH = [
    {
        "class": "DisplayController",
        "vendor_id": "0x10DE",
        "product_id": "0x2330",
        "subsystem_vendor_id": "0x10DE",
        "subsystem_id": "0x16C1",
    }
] * 8 + [
    {"class": "Bridge", "vendor_id": "0x8086", "product_id": "0x2030"},
    {
        "class": "DisplayController",
        "vendor_id": "0x1A03",
        "product_id": "2000",
    },
    {"class": "ProcessingAccelerators", "vendor_id": "1d0f"},
]


def test_functions_of_a_bmc_give_models_and_counts(
    ironic: ironic_service.Ironic,
) -> None:
    node = ironic.create()
    ironic.inspect(node, {}, pci_devices=REDFISH[:-1])
    assert ironic.traits(node) == {
        "CUSTOM_GPU_NVIDIA_H100XM_X8",
        "CUSTOM_ACCELERATOR_MODEL_NVIDIA_H100XM",
        "CUSTOM_ACCELERATOR_MIG_CAPABLE",
        "CUSTOM_ACCELERATOR_DEVICE_10DE_2330",
        "CUSTOM_ACCELERATOR_VENDOR_NVIDIA",
    }
    fields = ironic.show(node)
    assert len(fields["properties"]["accelerators"]) == 8
    assert fields["resource_class"] == "baremetal.gpu_nvidia_h100xm_x8"


def test_functions_do_not_remove_what_they_can_not_show(
    ironic: ironic_service.Ironic, place: pathlib.Path
) -> None:
    node = ironic.create()
    ironic.inspect(node, read_host("qat", place))
    only_functions = [
        {"class": "0b4000", "vendor_id": "8086", "product_id": "4940"}
    ]
    ironic.inspect(node, {"pci_devices": only_functions})
    traits = ironic.traits(node)
    assert {"CUSTOM_QAT_SYM", "CUSTOM_ACCELERATOR_FAULTED"} <= traits
    assert "CUSTOM_ACCELERATOR_MODEL_INTEL_QAT_C62X" not in traits
