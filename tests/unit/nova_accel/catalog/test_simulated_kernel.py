# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel agrees with the catalog.

The kernel computes the values that the catalog lists, so a difference is an
error in one of them.
"""

import pytest

from nova_accel.catalog import loader, mdev_names
from tests.lab.fakehost.technologies.nvidia import (
    nvidia_instances,
    nvidia_types,
)

TYPES = [
    (key, kind)
    for key, model in nvidia_types.MODELS.items()
    for kind in model.types()
]


@pytest.mark.parametrize(
    ("key", "kind"), TYPES, ids=[kind.name for _, kind in TYPES]
)
def test_simulated_types_equal_those_of_the_catalog(
    key: str, kind: nvidia_types.VgpuType
) -> None:
    listed = loader.load().find(mdev_names.strip_brand(kind.name))
    assert listed is not None
    assert listed.gpu == key
    assert listed.framebuffer_mb == kind.framebuffer
    assert listed.limit == kind.max_instance
    assert listed.instance == kind.instance
    assert listed.per_instance == kind.per_instance
    if listed.starts_mixed:
        assert listed.span == kind.size
        assert listed.starts_mixed == kind.mixed
    if listed.starts_equal:
        assert listed.starts_equal == kind.equal


@pytest.mark.parametrize("key", sorted(nvidia_types.MODELS))
def test_simulated_instances_equal_those_of_the_catalog(key: str) -> None:
    gpu = loader.load().gpu(key)
    assert gpu is not None
    listed = {
        kind.name: (kind.size, kind.slices, kind.starts, kind.limit)
        for kind in gpu.kinds
    }
    for kind in nvidia_types.MODELS[key].kinds:
        simulated = (kind.size, kind.slices, kind.starts, kind.limit)
        assert listed[kind.name] == simulated


def test_instances_never_overlap() -> None:
    made = nvidia_instances.Instances(nvidia_instances.A100_KINDS)
    for kind in made.kinds:
        for start in made.room(kind):
            if start in made.room(kind):
                made.create(kind, start)
    taken = [
        unit
        for instance in made.present.values()
        for unit in range(instance.start, instance.start + instance.kind.size)
    ]
    assert len(taken) == len(set(taken))
    assert max(taken) < 8
