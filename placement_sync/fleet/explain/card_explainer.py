# SPDX-License-Identifier: Apache-2.0
"""Reasons of a card itself: it is of another model, or lacks a place.

A host removes the trait of a profile that has no place, so that Placement
only says that the card does not offer it. Model and places are in the other
traits of the card.
"""

import dataclasses

from nova_accel.catalog import mdev_names, vgpu_types
from nova_accel.geometry import occupancy
from nova_accel.model import flavors, names
from placement_sync.fleet.devices import device_rows
from placement_sync.fleet.flavors import offered_devices

#: Of cards of other models than that of the request.
OTHER_MODEL = "of another model"
# Traits that a card has for ever, or never.
_IDENTITIES = (names.MODEL_PREFIX, names.DEVICE_PREFIX)
_WHOLE_GPU = "CUSTOM_GPU_PCI_"
# Vendor of all types in the catalog.
_NVIDIA = "10de:"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardExplainer:
    """Reasons of cards, by the catalog of vGPU types."""

    types: offered_devices.VgpuTypes

    def explain(
        self,
        group: flavors.RequestGroup,
        device: offered_devices.OfferedDevice,
    ) -> str:
        """Return why a card can't have a group, empty if not known.

        That it is of another model is the first reason, and for all cards
        of other models the same text.
        """
        missing = sorted(group.required - device.traits)
        if any(self._is_of_other_model(trait, device) for trait in missing):
            return OTHER_MODEL
        for trait in missing:
            vgpu_type = self.types.find(trait)
            if vgpu_type is not None and not device.is_unavailable:
                return self._explain_place(vgpu_type, device)
        return ""

    def _is_of_other_model(
        self, trait: str, device: offered_devices.OfferedDevice
    ) -> bool:
        """Return whether no card of this model ever has a trait."""
        vgpu_type = self.types.find(trait)
        if vgpu_type is not None:
            gpu = self.types.gpu_of(device)
            if gpu is None:
                return bool(device.model) or _is_of_other_vendor(device)
            return gpu.key != vgpu_type.gpu
        if trait.startswith(_WHOLE_GPU):
            ids = names.DEVICE_PREFIX + trait.removeprefix(_WHOLE_GPU)
            return ids not in device.traits
        return trait.startswith(_IDENTITIES)

    def _explain_place(
        self,
        vgpu_type: vgpu_types.CatalogVgpuType,
        device: offered_devices.OfferedDevice,
    ) -> str:
        """Return the need of a vGPU and who has its place, "" if unknown."""
        mode = device_rows.find_mode(device)
        if bool(vgpu_type.instance) != device.is_mig:
            only = "outside of" if device.is_mig else "in"
            return f"{vgpu_type.name} exists only on a card {only} MIG mode"
        if mode == "equal":
            return _explain_size(vgpu_type, device)
        occupied = _describe_places(device)
        if not occupied:
            return ""
        gpu = self.types.gpu_of(device)
        kinds = {kind.name: kind for kind in gpu.kinds} if gpu else {}
        if vgpu_type.instance in kinds:
            kind = kinds[vgpu_type.instance]
            unit, length, starts = "slice", kind.size, kind.starts
        else:
            unit, length = "unit", vgpu_type.span
            starts = vgpu_type.starts_mixed
        need = (
            f"needs {length} adjacent {unit}s"
            if length > 1
            else (f"needs a {unit}")
        )
        where = ", ".join(map(str, starts))
        return (
            f"{vgpu_type.name} {need}, from {unit} {where}; there are"
            f" {occupied}"
        )


def _is_of_other_vendor(device: offered_devices.OfferedDevice) -> bool:
    """Return whether ids show that a card is not NVIDIA's."""
    ids = offered_devices.find_ids(device)
    return bool(ids) and not ids.startswith(_NVIDIA)


def _explain_size(
    vgpu_type: vgpu_types.CatalogVgpuType,
    device: offered_devices.OfferedDevice,
) -> str:
    """Return that partitions of a card in equal-size mode are of another."""
    sizes = sorted(
        {
            mdev_names.name_from_trait(trait)
            for trait in device.traits
            if trait.startswith(names.PROFILE_PREFIXES)
        }
    )
    if not sizes:
        return ""
    return (
        f"{vgpu_type.name} has another size than its partitions, and in this"
        f" mode all have one: it has room for {', '.join(sizes)}"
    )


def _describe_places(device: offered_devices.OfferedDevice) -> str:
    """Return the partitions of a card with their places, "" without any."""
    occupied = occupancy.parse_traits(device.traits)
    unit = "slice" if device.is_mig else "unit"
    lines = [
        f"{place.count} {mdev_names.name_from_trait(place.trait)} at {unit}"
        f" {place.start}"
        for place in occupied.places
    ]
    lines += [
        f"{place.count} {mdev_names.name_from_trait(place.trait)} of another"
        f" program at {unit} {place.start}"
        for place in occupied.unallocated
    ]
    lines += [
        f"a GPU instance of the operator at slice {instance.start}"
        for instance in occupied.instances
    ]
    return ", ".join(lines)
