# SPDX-License-Identifier: Apache-2.0
"""Proves how NVIDIA cards in MIG mode are described."""

import dataclasses
import pathlib

import pytest

from nova_accel import model
from nova_accel.host import nvml_gpus
from tests.hosts import build, look

A100 = "0000:41:00.0"


SPANS = {
    "3": ("3g.20gb", 4, 4),
    "5": ("2g.10gb", 2, 2),
    "11": ("1g.5gb", 0, 1),
    "12": ("1g.5gb", 1, 1),
}
KINDS = (
    model.InstanceKind(
        name="1g.5gb", size=1, slices=1, starts=tuple(range(7)), limit=7
    ),
    model.InstanceKind(name="2g.10gb", size=2, slices=2, starts=(0, 2, 4)),
    model.InstanceKind(name="3g.20gb", size=4, slices=3, starts=(0, 4)),
)


def mig(*handles: str, is_mig: bool = True) -> nvml_gpus.NvmlGpu:
    return nvml_gpus.NvmlGpu(
        address=A100,
        driver_version="550.90.07",
        is_mig=is_mig,
        types=tuple(
            nvml_gpus.NvmlVgpuType(
                name=f"GRID A100-{shape}",
                type_id=number,
                framebuffer_mb=size,
                max_instances=7,
                instance=kind,
            )
            for shape, number, size, kind in (
                ("1-5C", "474", 5120, "1g.5gb"),
                ("2-10C", "475", 10240, "2g.10gb"),
                ("3-20C", "476", 20480, "3g.20gb"),
                ("4C", "468", 4096, ""),
            )
        ),
        kinds=KINDS,
        instances=tuple(
            model.Instance(
                kind=SPANS[handle][0],
                handle=handle,
                span=model.Span(start=SPANS[handle][1], size=SPANS[handle][2]),
            )
            for handle in handles
        ),
    )


def test_nvml_reports_the_instances(tmp_path: pathlib.Path) -> None:
    root = look.make("a100-mig-mdev", tmp_path)
    (card,) = look.read(root, gpus=[mig(*SPANS)]).devices
    assert {i.handle for i in card.geometry.instances} == set(SPANS)
    assert not card.geometry.is_dynamic
    assert look.profile(card, "A100-1-5C").available == 1
    assert "CUSTOM_ACCELERATOR_DRIVER_NVIDIA_550_90_07" in card.traits


def test_a_type_whose_instance_nvml_does_not_name_is_still_mig_backed(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a100-mig-mdev", tmp_path)
    nvml = mig(*SPANS)
    without_instances = dataclasses.replace(
        nvml,
        types=tuple(dataclasses.replace(t, instance="") for t in nvml.types),
    )
    (card,) = look.read(root, gpus=[without_instances]).devices
    assert card == look.read(root, gpus=[nvml]).devices[0]
    profile = look.profile(card, "A100-1-5C")
    assert profile.instance == "1g.5gb"
    assert profile.charges["CUSTOM_MIG_SLICE"] == 1


def test_instances_are_made_for_claims_if_policy_says_so(
    tmp_path: pathlib.Path,
) -> None:
    description = build.load("a100-mig-mdev")
    for parent in description["parents"]:
        for kind in parent["types"]:
            kind[2] = 0  # no instance, so the driver can make nothing
    description["mdevs"] = []
    root = build.build(description, tmp_path)
    spec = ['{"vendor_id": "10de", "mig_instances": "dynamic"}']
    (card,) = look.read(root, spec, [mig()]).devices
    assert card.geometry.is_dynamic
    available = {p.name: p.available for p in card.profiles}
    # Six VFs; seven slices of which a 3g takes three and half the memory.
    assert available["A100-1-5C"] == 6
    assert available["A100-3-20C"] == 2
    assert "A100-4C" not in available
    static = look.read(root, spec)
    assert not any(d.geometry.is_dynamic for d in static.devices)


def test_dynamic_instances_need_nvml(tmp_path: pathlib.Path) -> None:
    root = look.make("a100-mig-mdev", tmp_path)
    state = look.read(root, ['{"mig_instances": "dynamic"}'])
    assert "see nova-accel doctor --only nv.nvml" in look.reasons(state, A100)
    card = look.device(state, A100)
    assert look.profile(card, "A100-2-10C").available == 1


@pytest.mark.parametrize(
    ("use", "gpus", "hint"),
    [
        ("vgpu", [mig(*SPANS)], "-mig 0"),
        ("mig", [mig(is_mig=False)], "-mig 1"),
    ],
)
def test_a_card_in_another_mode_is_not_offered(
    tmp_path: pathlib.Path,
    use: str,
    gpus: list[nvml_gpus.NvmlGpu],
    hint: str,
) -> None:
    spec = [f'{{"vendor_id": "10de", "use": "{use}"}}']
    description = build.load("a100-mig-mdev")
    root = build.build(description, tmp_path / "used")
    state = look.read(root, spec, gpus)
    assert hint in look.reasons(state, A100)
    # Existing vGPUs stay accounted for.
    (card,) = state.devices
    assert card.counters["VGPU"] == 1
    assert not any(p.available for p in card.profiles)
    root = build.build({**description, "mdevs": []}, tmp_path / "empty")
    assert look.read(root, spec, gpus).devices == ()
