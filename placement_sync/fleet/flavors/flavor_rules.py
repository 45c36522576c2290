# SPDX-License-Identifier: Apache-2.0
"""Rules that a flavor breaks on every host."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from nova_accel.catalog import mdev_names, vgpu_types
from nova_accel.config import policy
from nova_accel.geometry import address_space
from nova_accel.inventory import wording
from nova_accel.model import flavors, names
from placement_sync.fleet.flavors import flavor_specs, offered_devices

# NVIDIA, "Multiple vGPU": the maximum in one virtual machine.
MAX_VGPUS = 16
# Nova's, for the address bits of a guest.
_MODE, _BITS = "hw:maxphysaddr_mode", "hw:maxphysaddr_bits"
_WHOLE = "CUSTOM_GPU_PCI_"
# BAR 3 of NVIDIA's GPUs, beside that of the memory.
_SMALL_BAR = 32 << 20


def explain_contradiction(
    contents: flavor_specs.FlavorContents, types: offered_devices.VgpuTypes
) -> str:
    """Return why a guest of the flavor can't start on any host, or ""."""
    groups = [group for group in contents.groups if group.suffix]
    reason = _explain_display(contents, groups)
    return reason or _explain_nvidia_mix(groups, types)


def explain_license(
    contents: flavor_specs.FlavorContents, series: Collection[str]
) -> str:
    """Return why the licences of some series do not serve a flavor, or "".

    :param series: see ``policy.is_licensed``.
    """
    for group in contents.groups:
        for trait in sorted(filter(_is_nvidia, group.required)):
            profile = mdev_names.name_from_trait(trait)
            if not policy.is_licensed(profile, series):
                return (
                    f"{policy.explain_license(profile, series)}; choose a"
                    " profile of these series, or add the series if you have"
                    " licences for it"
                )
    return ""


def advise_address_bits(
    contents: flavor_specs.FlavorContents,
    specs: Mapping[str, str],
    memory_mb: int,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return which address bits a flavor of whole GPUs should have, or "".

    Only for a flavor with bits of its own: hosts choose those of others, and
    refuse too few. Placement does not know the BARs; NVIDIA's GPUs of data
    centers have their memory in one, of the next power of two.
    """
    bits = specs.get(_BITS, "")
    if specs.get(_MODE) != "emulate" or not bits.isdecimal():
        return ""
    bars = list(_list_bars(contents, types))
    demand = address_space.sum_bars([size, _SMALL_BAR] for size in bars)
    uefi, bios = (
        address_space.AddressSpace(
            memory=memory_mb << 20, has_uefi=has_uefi
        ).choose_bits(demand)
        for has_uefi in (True, False)
    )
    if not bars or int(bits) >= uefi:
        return ""
    return (
        f"{_BITS} is {bits}, and the BARs of"
        f" {wording.count_of(len(bars), 'whole GPU')}, up to"
        f" {address_space.format_size(demand.total)}, need {uefi} with UEFI,"
        f" {bios} with BIOS: set it to {uefi}, or remove {_MODE} and {_BITS},"
        " so that each host chooses the bits"
    )


def _list_bars(
    contents: flavor_specs.FlavorContents, types: offered_devices.VgpuTypes
) -> Iterator[int]:
    """Yield the size of the largest BAR of each whole GPU in the catalog."""
    for group in contents.groups:
        for trait in group.required:
            ids = trait.removeprefix(_WHOLE).lower().replace("_", ":")
            gpu = types.gpu_by_ids.get(ids)
            count = group.resources.get(names.WHOLE_GPU_CLASS, 0)
            if gpu is not None and trait.startswith(_WHOLE):
                yield from [1 << (gpu.memory_mb * 2**20 - 1).bit_length()] * (
                    count
                )


def _explain_display(
    contents: flavor_specs.FlavorContents,
    groups: Sequence[flavors.RequestGroup],
) -> str:
    """Return the reason if a display is requested without a vGPU."""
    vgpu_classes = {names.GPU_CLASS, names.MDEV_CLASS}
    if not contents.options.has_display or any(
        vgpu_classes & group.resources.keys() for group in groups
    ):
        return ""
    return (
        "accelerator:display=on: only a vGPU can be a console of the guest,"
        " and the flavor requests none; remove the extra spec"
    )


def _explain_nvidia_mix(
    groups: Sequence[flavors.RequestGroup], types: offered_devices.VgpuTypes
) -> str:
    """Return why NVIDIA's driver refuses these vGPUs in one server.

    All vGPUs must be of one board and one series, and at most MAX_VGPUS
    (NVIDIA AI Enterprise, "Multiple vGPU"; sizes may differ).
    """
    nvidia = [g for g in groups if any(map(_is_nvidia, g.required))]
    count = sum(g.resources.get(names.GPU_CLASS, 0) for g in nvidia)
    if count > MAX_VGPUS:
        return (
            f"{count} vGPUs in one server: NVIDIA's driver supports at most"
            f" {MAX_VGPUS}; request fewer, larger vGPUs"
        )
    requested_types = [t for g in nvidia if (t := _find_vgpu_type(g, types))]
    boards = {vgpu_type.gpu: vgpu_type.name for vgpu_type in requested_types}
    if len(boards) > 1:
        return (
            f"{' and '.join(sorted(boards.values()))} in one server: all of"
            " its NVIDIA vGPUs must be of one model of card; choose one"
        )
    series = {
        letter: vgpu_type.name
        for vgpu_type in requested_types
        if (letter := mdev_names.parse_series(vgpu_type.name))
    }
    if len(series) > 1:
        return (
            f"{' and '.join(sorted(series.values()))} in one server: all of"
            " its NVIDIA vGPUs must be of one series"
            f" ({', '.join(sorted(series))}); choose one"
        )
    return ""


def _is_nvidia(trait: str) -> bool:
    return trait.startswith(names.NVIDIA_VGPU_PREFIX)


def _find_vgpu_type(
    group: flavors.RequestGroup, types: offered_devices.VgpuTypes
) -> vgpu_types.CatalogVgpuType | None:
    return next((f for f in map(types.find, group.required) if f), None)
