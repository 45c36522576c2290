# SPDX-License-Identifier: Apache-2.0
"""The installed catalog is consistent."""

import itertools
import json
from collections.abc import Callable

import os_traits
import pytest

from nova_accel import errors, model
from nova_accel.catalog import loader, vgpu_types

CATALOG = loader.load()
GPUS = CATALOG.gpus()
TYPES = [
    vgpu_type for gpu in GPUS for vgpu_type in CATALOG.profiles_of(gpu.key)
]
Types = list[vgpu_types.CatalogVgpuType]


def of_each_gpu(
    is_included: Callable[[vgpu_types.CatalogVgpuType], object],
) -> pytest.MarkDecorator:
    """Run a test with the included types of each GPU that has some."""
    groups = {
        gpu.key: list(filter(is_included, CATALOG.profiles_of(gpu.key)))
        for gpu in GPUS
    }
    return pytest.mark.parametrize(
        "types", [pytest.param(t, id=key) for key, t in groups.items() if t]
    )


def key_of(gpu: vgpu_types.CatalogGpu) -> str:
    return gpu.key


def gpu_of(vgpu_type: vgpu_types.CatalogVgpuType) -> vgpu_types.CatalogGpu:
    gpu = CATALOG.gpu(vgpu_type.gpu)
    assert gpu is not None
    return gpu


def most(starts: tuple[int, ...], span: int) -> int:
    """Return the largest number of spans that fit, by trying."""
    best = 0
    for first, start in enumerate(starts):
        later = tuple(s for s in starts[first + 1 :] if s >= start + span)
        best = max(best, 1 + (most(later, span) if later else 0))
        if start >= span:
            break  # no later start leaves more room than this one
    return best


def test_the_catalog_has_current_types() -> None:
    assert len(TYPES) > 400
    for name in (
        "A40-8Q",
        "T4-4Q",
        "L40S-48C",
        "A100-1-5CME",
        "RTX Pro 6000 Blackwell DC-1-24Q",
    ):
        assert CATALOG.find(name) is not None, name
    assert CATALOG.find("NVIDIA A40-8Q") is None
    assert CATALOG.gpu("A41") is None
    assert CATALOG.profiles_of("A41") == ()


@pytest.mark.parametrize(
    ("pci_id", "key"),
    [
        ("10de:2901", "B200X"),
        ("10de:3182", "B300X"),
        ("10de:2941", "GB200"),
        ("10de:2c31", "RTXPRO4500"),
        ("10de:2c3a", "RTXPRO4500"),
        ("10de:2329", "H20"),
        ("10de:232c", "H20X"),
        ("10de:2322", "H800"),
        ("10de:2324", "H800XM"),
        ("10de:233a", "H800L"),
        ("10de:2337", "H100XS"),
        ("10de:2339", "H100XL"),
        ("10de:2342", "GH200"),
        ("10de:2348", "GH200L"),
        ("10de:26ba", "L20"),
        ("10de:27b6", "L2"),
        ("10de:26b1", "RTX6000-Ada"),
        ("10de:26b3", "RTX5880-Ada"),
        ("10de:26b2", "RTX5000-Ada"),
        ("10de:20f6", "A800"),
        ("10de:20f5", "A800D"),
        ("10de:20f3", "A800DX"),
        ("10de:20bd", "A800X"),
        ("10de:20b8", "A100X-Converged"),
        ("10de:20b9", "A30X"),
        ("10de:2230", "RTXA6000"),
        ("10de:2233", "RTXA5500"),
        ("10de:2231", "RTXA5000"),
    ],
)
def test_a_gpu_is_identified_by_its_pci_id(pci_id: str, key: str) -> None:
    gpu = CATALOG.of_card((), *pci_id.split(":"))
    assert gpu is not None
    assert gpu.key == key


def test_a_gpu_without_types_may_have_any_mode() -> None:
    gpu = CATALOG.gpu("RTXPRO4500")
    assert gpu is not None
    assert CATALOG.profiles_of(gpu.key) == ()
    assert gpu.can_mix
    assert gpu.can_mig
    old = CATALOG.gpu("P40")
    assert old is not None
    assert not old.can_mix
    assert not old.can_mig


def test_no_numeric_type_id_is_stored() -> None:
    """Type ids change with each driver release."""
    assert "type_id" not in loader.text()
    assert "nvidia-" not in loader.text()


def test_type_names_are_unique() -> None:
    rows = json.loads(loader.text())["gpus"]
    names = [
        f"{row['stem']}-{name}"
        for row in rows
        for size in row["sizes"]
        for name in size["types"]
    ]
    assert len(names) == len(set(names)) == len(TYPES)
    assert len(rows) == len(GPUS)


@of_each_gpu(lambda t: t.starts_mixed)
def test_every_place_is_in_the_region(types: Types) -> None:
    for t in types:
        for starts in (t.starts_mixed, t.starts_equal):
            assert list(starts) == sorted(set(starts)), t
            end = gpu_of(t).region - t.span
            assert all(0 <= start <= end for start in starts), t


@of_each_gpu(lambda t: t.starts_mixed)
def test_the_mixed_limit_follows_from_the_starts(types: Types) -> None:
    for t in types:
        room = most(t.starts_mixed, t.span)
        assert t.limit_mixed == min(room, vgpu_types.MAX_TIME_SLICED), t


@of_each_gpu(lambda t: not t.instance)
def test_equal_sizes_fit_the_memory_and_their_starts(types: Types) -> None:
    for t in types:
        memory_mb = gpu_of(t).memory_mb
        assert 1 <= t.limit <= vgpu_types.MAX_TIME_SLICED, t
        assert t.limit * t.framebuffer_mb <= memory_mb, t
        if t.starts_equal:
            assert t.limit == most(t.starts_equal, t.span), t
        else:
            room = memory_mb // t.framebuffer_mb
            assert t.limit == min(room, vgpu_types.MAX_TIME_SLICED), t


@of_each_gpu(lambda t: t.starts_mixed)
def test_a_span_holds_the_framebuffer(types: Types) -> None:
    for t in types:
        assert t.span * 1024 >= t.framebuffer_mb, t
        assert (t.limit_mixed or 0) <= t.limit, t


@of_each_gpu(lambda t: t.instance)
def test_mig_limits_follow_from_the_geometry(types: Types) -> None:
    for t in types:
        gpu = gpu_of(t)
        kind = model.Geometry(kinds=gpu.kinds).kind(t.instance)
        assert kind is not None, t
        assert kind.limit is not None, t
        assert t.limit == kind.limit * t.per_instance, t
        assert t.starts_mixed == t.starts_equal == (), t
        assert t.span == 0, t
        # However instances are mixed, their vGPUs never add up to more
        # memory than is counted, or Placement would refuse what the card
        # can do.
        instance_mb = t.per_instance * t.framebuffer_mb
        assert instance_mb * gpu.mig_region <= gpu.memory_mb * kind.size, t


@pytest.mark.parametrize(
    "gpu", [gpu for gpu in GPUS if gpu.is_mig_capable], ids=key_of
)
def test_instances_fit_the_slices(gpu: vgpu_types.CatalogGpu) -> None:
    assert gpu.kinds
    assert gpu.mig_region == max(k.starts[-1] + k.size for k in gpu.kinds)
    for kind in gpu.kinds:
        assert all(
            0 <= start <= gpu.mig_region - kind.size for start in kind.starts
        )
        assert kind.slices <= gpu.mig_slices
        placed = most(kind.starts, kind.size)
        by_slices = min(placed, gpu.mig_slices // kind.slices)
        media = kind.name.endswith(("+me", "+me.all"))
        assert kind.limit == (1 if media else by_slices), kind


def test_kinds_of_rtx_pro_6000_are_the_published_ones() -> None:
    """`nvidia-smi mig -lgip` and `-lgipp` of R575 and newer."""
    gpu = CATALOG.gpu("RTXPRO6000")
    assert gpu is not None
    small, half = (0, 3, 6, 9), (0, 6)
    kinds = {k.name: (k.slices, k.size, k.starts, k.limit) for k in gpu.kinds}
    assert kinds == {
        "1g.24gb": (1, 3, small, 4),
        "1g.24gb+me": (1, 3, small, 1),
        "1g.24gb+gfx": (1, 3, small, 4),
        "1g.24gb+me.all": (1, 3, small, 1),
        "1g.24gb-me": (1, 3, small, 4),
        "2g.48gb": (2, 6, half, 2),
        "2g.48gb+gfx": (2, 6, half, 2),
        "2g.48gb+me.all": (2, 6, half, 1),
        "2g.48gb-me": (2, 6, half, 2),
        "4g.96gb": (4, 12, (0,), 1),
        "4g.96gb+gfx": (4, 12, (0,), 1),
    }


@pytest.mark.parametrize("gpu", GPUS, ids=key_of)
def test_modes_and_memory_of_a_gpu_agree_with_its_types(
    gpu: vgpu_types.CatalogGpu,
) -> None:
    types = CATALOG.profiles_of(gpu.key)
    assert gpu.has_mixed == any(vgpu_type.starts_mixed for vgpu_type in types)
    assert gpu.is_mig_capable == any(vgpu_type.instance for vgpu_type in types)
    assert bool(gpu.region) == gpu.has_mixed
    assert gpu.has_sriov or not gpu.has_mixed
    if types:
        whole = max(vgpu_type.framebuffer_mb for vgpu_type in types)
        assert 0.95 * gpu.memory_mb <= whole <= gpu.memory_mb
    used = {vgpu_type.instance for vgpu_type in types if vgpu_type.instance}
    assert used <= {kind.name for kind in gpu.kinds}


@pytest.mark.parametrize("gpu", GPUS, ids=key_of)
def test_standard_traits_exist_and_name_the_architecture(
    gpu: vgpu_types.CatalogGpu,
) -> None:
    assert gpu.traits <= set(os_traits.get_traits("HW_GPU_"))
    cuda = "HW_GPU_CUDA_COMPUTE_CAPABILITY_V" + (
        gpu.compute_capability.replace(".", "_")
    )
    stated = {t for t in gpu.traits if "CUDA" in t}
    exists = cuda in os_traits.get_traits("HW_GPU_CUDA_")
    assert stated == ({cuda} if exists else set())


def test_pci_ids_name_one_gpu_each() -> None:
    ids = [pci_id for gpu in GPUS for pci_id in gpu.pci_ids]
    assert len(ids) == len(set(ids))
    for pci_id in ids:
        parts = pci_id.split(":")
        assert len(parts) in (2, 4)
        assert all(int(p, 16) >= 0 and len(p) == 4 for p in parts)
        assert pci_id == pci_id.lower()
    for prefix, other in itertools.permutations(ids, 2):
        assert not other.startswith(prefix + ":"), "a board hides another"


def card(*names: str, ids: str = "") -> str | None:
    gpu = CATALOG.of_card(names, *ids.split(":"))
    return gpu.key if gpu else None


def test_a_card_is_identified_by_its_types_or_else_by_its_ids() -> None:
    assert card("A40-8Q", "A40-12Q") == "A40"
    # A type of a later driver is unknown; the other type decides.
    assert card("A40-8Q", "A40-5Z") == "A40"
    assert card(ids="10de:2235") == "A40"
    assert card("A40-5Z", ids="10de:2235") == "A40"
    # Types of the driver precede an id that another board may share.
    assert card("L40S-8Q", ids="10de:2235") == "L40S"
    assert card(ids="10de:25b6:10de:14a9") == "A16"
    assert card(ids="10de:25b6:10de:157e") == "A2"
    assert card(ids="10de:25b6:1028:0000") is None
    assert card(ids="10de:1eb8:10de:12a2") == "T4"
    assert card("mtty-2", ids="8086:56c0") is None
    assert card() is None
    # Types of two cards at once: only the ids can decide.
    assert card("A40-8Q", "A16-8Q", ids="10de:2235") == "A40"
    assert card("A40-8Q", "A16-8Q") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "gpus": []}',
        '{"format": 1}',
        '{"format": 1, "gpus": [{}]}',
        '{"format": 1, "gpus": ["A40"]}',
        '{"format": 1, "gpus": {"A40": 1}}',
    ],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(errors.MalformedError, match="catalog of"):
        vgpu_types.parse(text)


def test_a_truncated_catalog_is_refused() -> None:
    whole = loader.text()
    for length in range(0, len(whole) - 2, 997):
        with pytest.raises(errors.MalformedError):
            vgpu_types.parse(whole[:length])
