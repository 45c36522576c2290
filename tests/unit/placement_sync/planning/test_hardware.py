# SPDX-License-Identifier: Apache-2.0
"""Hosts and cards that do not exist yet are as real ones report them."""

import dataclasses
import itertools
from random import Random

import pytest

from nova_accel import errors, model
from nova_accel.catalog import loader
from nova_accel.model import names, providers
from placement_sync.fleet.flavors import offered_devices
from placement_sync.planning import card_claims, snapshot
from placement_sync.planning.capacity import hardware
from tests.support.scheduler import judged_hosts

CATALOG = loader.load()
MODES = [
    (gpu.key, layout)
    for gpu in CATALOG.gpus()
    for layout, is_possible in (
        (model.Layout.EQUAL, True),
        (model.Layout.MIXED, gpu.has_mixed),
        (model.Layout.MIG, bool(gpu.kinds)),
    )
    if gpu.is_complete and is_possible
]


@pytest.mark.parametrize(("key", "layout"), MODES)
def test_an_empty_card_is_as_its_host_publishes_it(
    key: str, layout: model.Layout
) -> None:
    gpu = CATALOG.gpu(key)
    assert gpu
    card = judged_hosts.nvidia_card("0000:01:00.0", key, layout, Random(0))  # noqa: S311
    card = dataclasses.replace(
        card,
        geometry=dataclasses.replace(
            card.geometry,
            instances=(),
            is_dynamic=layout is model.Layout.MIG,
        ),
    )
    (node,) = judged_hosts.Host("host", [card]).tree().nodes
    traits, capacities = card_claims.build_empty(CATALOG, gpu, layout)
    assert capacities == providers.build_capacities(node.inventories)
    assert {t for t in traits if t in node.traits} == node.traits
    assert not {
        t for t in traits - node.traits if t.startswith(names.PROFILE_PREFIXES)
    }


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("A100-80", "A100D"),
        ("a100-40GB", "A100"),
        ("A100DX", "A100DX"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4 16GB", "T4"),
        ("H100-80", "H100"),
        ("L40S-48", "L40S"),
    ],
)
def test_models_have_names_that_people_write(name: str, key: str) -> None:
    gpu, note = hardware.find_gpu(name, CATALOG)
    assert gpu.key == key
    assert (key in note) == (name == "A100-80" or "-" in name)


@pytest.mark.parametrize("key", ["A30", "A100D", "H100"])
def test_instances_have_places_if_there_are_any(key: str) -> None:
    """Compared with all arrangements of up to three GPU instances."""
    gpu = CATALOG.gpu(key)
    assert gpu
    kinds = {kind.name: kind for kind in gpu.kinds}
    for count in (1, 2, 3):
        for chosen in itertools.combinations_with_replacement(kinds, count):
            is_possible = any(
                _are_apart([kinds[n] for n in chosen], starts)
                for starts in itertools.product(
                    *(kinds[name].starts for name in chosen)
                )
            ) and all(
                chosen.count(n) <= (kinds[n].limit or count) for n in chosen
            )
            is_possible &= (
                sum(kinds[n].slices for n in chosen) <= gpu.mig_slices
            )
            try:
                traits, _ = card_claims.build_empty(
                    CATALOG, gpu, model.Layout.MIG, instances=chosen
                )
            except ValueError:
                assert not is_possible, chosen
            else:
                assert is_possible, chosen
                prefix = "CUSTOM_ACCELERATOR_INSTANCE_"
                assert sum(t.startswith(prefix) for t in traits) == count


def _are_apart(
    kinds: list[model.InstanceKind], starts: tuple[int, ...]
) -> bool:
    units = [
        unit
        for kind, start in zip(kinds, starts, strict=True)
        for unit in range(start, start + kind.size)
    ]
    return len(units) == len(set(units))


def test_added_hosts_have_new_names() -> None:
    planned = snapshot.CloudSnapshot(offered_devices.VgpuTypes(CATALOG))
    for text in ("gpu=L40S,hosts=2,cards=3,vcpus=8", "gpu=L40S,memory=64"):
        hardware.add_hosts(hardware.parse_added(text, CATALOG), planned)
    hosts = {host.name: host for host in planned.hosts.values()}
    assert sorted(hosts) == ["new-l40s-1", "new-l40s-2", "new-l40s-3"]
    assert len(hosts["new-l40s-2"].devices) == 3
    assert hosts["new-l40s-1"].capacities["VCPU"].free == 8
    assert [*hosts["new-l40s-3"].capacities] == ["MEMORY_MB"]


@pytest.mark.parametrize(
    "text",
    [
        *("gpu=L40S,hosts=1e3", "gpu=L40S,hosts=10001", "gpu=L40S,cards="),
        *("gpu=L40S,gpu=L4", "gpu=L40S,,", "L40S", "gpu=L40S,vfs=33"),
        "gpu=L40S,hosts=" + "9" * 5000,
    ],
)
def test_wrong_numbers_and_keys_are_refused(text: str) -> None:
    with pytest.raises(errors.MalformedError):
        hardware.parse_added(text, CATALOG)
