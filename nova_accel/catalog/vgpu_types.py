# SPDX-License-Identifier: Apache-2.0
"""Catalog of NVIDIA's GPUs and vGPU types.

A host reports the types of a card and which of them it can make now, but
not all rules by which they share the card: starts under mixed sizes, kinds
of GPU instances, limits. The catalog has these by type name, because the
numeric ids change between driver releases. ``nova_accel.catalog.loader``
loads the installed file; this module only parses its text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.geometry import spans
from nova_accel.model import json_codec, names

FORMAT = 1
# The driver's limit for time-sliced vGPUs of one GPU with any number of VFs:
# MAX_VGPU_DEVICES_PER_PGPU of NVIDIA's open GPU kernel modules.
MAX_TIME_SLICED = 32
_VENDOR_ID = "10de"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogVgpuType:
    """A vGPU type.

    ``name`` is without brand (``A40-8Q``), ``gpu`` the key of its GPU,
    ``framebuffer_mb`` in MiB. ``limit`` is the number of vGPUs on a GPU
    where all have this size (for MIG: in all GPU instances together),
    ``limit_mixed`` that under mixed sizes, None for a GPU without that
    mode. ``span`` is its length in the GPU's region, 0 for types without
    placement; ``starts_mixed`` and ``starts_equal`` are the valid starts in
    either mode. ``instance`` is the kind of GPU instance that contains it,
    empty for time-sliced types, ``per_instance`` the number of vGPUs in one
    instance.
    """

    name: str
    gpu: str
    framebuffer_mb: int
    limit: int
    limit_mixed: int | None = None
    span: int = 0
    starts_mixed: tuple[int, ...] = ()
    starts_equal: tuple[int, ...] = ()
    instance: str = ""
    per_instance: int = 1

    @property
    def trait(self) -> str:
        """Return the trait of providers that can make the type."""
        return mdev_names.profile_trait(self.name, _VENDOR_ID, gpu=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogGpu:
    """A GPU model.

    ``key`` is the stem of its types (``A40``), ``product`` is for users.
    ``pci_ids`` are ``vendor:device`` or, where boards share those,
    ``vendor:device:subvendor:subdevice``. ``memory_mb`` is the framebuffer
    in MiB, at least the sum of all vGPUs that fit: where NVIDIA rounds up
    the sizes of types, it is slightly more than the physical one.
    ``region`` is the length that mixed spans divide (0: unknown or none),
    ``mig_region`` the length of the region that GPU instances divide, in
    the unit of NVML's placements, and ``mig_slices`` the number of compute
    slices (0: no MIG). ``has_sriov`` is True where vGPUs are on VFs,
    ``has_mixed`` where sizes can be mixed. ``compute_capability`` is CUDA's
    (``8.6``); ``traits`` are standard traits of the card. ``is_complete``
    is False for a GPU whose fields after ``compute_capability`` are
    unknown.
    """

    key: str
    product: str
    pci_ids: tuple[str, ...]
    memory_mb: int
    architecture: str
    compute_capability: str = ""
    region: int = 0
    has_sriov: bool = False
    has_mixed: bool = False
    is_mig_capable: bool = False
    kinds: tuple[model.InstanceKind, ...] = ()
    mig_region: int = 0
    mig_slices: int = 0
    traits: frozenset[str] = frozenset()
    is_complete: bool = True

    @property
    def can_mix(self) -> bool:
        """Return whether sizes can be mixed; True where unknown."""
        return self.has_mixed or not self.is_complete

    @property
    def can_mig(self) -> bool:
        """Return whether the GPU has a MIG mode; True where unknown."""
        return self.is_mig_capable or not self.is_complete


class Catalog:
    """GPUs and vGPU types with lookups by name, trait and PCI id.

    :param gpus: in the order of the file.
    :param types: in any order; names are unique.
    """

    def __init__(
        self, gpus: Iterable[CatalogGpu], types: Iterable[CatalogVgpuType]
    ) -> None:
        self._gpus = {gpu.key: gpu for gpu in gpus}
        self._types = {vgpu_type.name: vgpu_type for vgpu_type in types}
        self._ids = {
            pci_id: gpu
            for gpu in self._gpus.values()
            for pci_id in gpu.pci_ids
        }

    def gpus(self) -> tuple[CatalogGpu, ...]:
        return tuple(self._gpus.values())

    def find(self, name: str) -> CatalogVgpuType | None:
        """Return the type of a name without brand, or None."""
        return self._types.get(name)

    def by_trait(self) -> dict[str, CatalogVgpuType]:
        return {
            vgpu_type.trait: vgpu_type for vgpu_type in self._types.values()
        }

    def charges(
        self, vgpu_type: CatalogVgpuType, is_exclusive: bool = False
    ) -> dict[str, int]:
        """Return the charges of one vGPU by resource class.

        :param is_exclusive: it has its card to itself: all memory and
            slices of the card.
        """
        charges = {
            names.GPU_CLASS: 1,
            names.GPU_MEMORY_CLASS: vgpu_type.framebuffer_mb,
        }
        gpu = self.gpu(vgpu_type.gpu)
        if gpu is not None and vgpu_type.per_instance == 1:
            for kind in gpu.kinds:
                if kind.name == vgpu_type.instance:
                    charges[names.MIG_SLICE_CLASS] = kind.slices
        if gpu is not None and is_exclusive:
            charges[names.GPU_MEMORY_CLASS] = gpu.memory_mb
            if names.MIG_SLICE_CLASS in charges:
                charges[names.MIG_SLICE_CLASS] = gpu.mig_slices
        return charges

    def gpu(self, key: str) -> CatalogGpu | None:
        """Return the GPU of a key (``A40``), or None."""
        return self._gpus.get(key)

    def profiles_of(self, key: str) -> tuple[CatalogVgpuType, ...]:
        """Return all types of a GPU: time-sliced first, then by size."""
        return tuple(
            sorted(
                (t for t in self._types.values() if t.gpu == key),
                key=lambda t: (bool(t.instance), t.framebuffer_mb, t.name),
            )
        )

    def of_card(
        self,
        profile_names: Iterable[str],
        vendor_id: str = "",
        product_id: str = "",
        subsystem_vendor: str = "",
        subsystem_product: str = "",
    ) -> CatalogGpu | None:
        """Return the GPU of a card, or None where unknown.

        The names of its types decide, as the driver reports them; the PCI
        ids do where it reports none, or only unknown ones.

        :param profile_names: names of its types without brand.
        :param vendor_id: ids are four hex digits in lower case.
        """
        board = f"{vendor_id}:{product_id}"
        by_id = self._ids.get(
            f"{board}:{subsystem_vendor}:{subsystem_product}"
        ) or self._ids.get(board)
        by_name = {
            self._types[name].gpu
            for name in profile_names
            if name in self._types
        }
        if not by_name or (by_id and by_id.key in by_name):
            return by_id
        return self._gpus[by_name.pop()] if len(by_name) == 1 else None


def compute_mixed_limit(starts: Iterable[int], span: int) -> int:
    """Return the maximal number of vGPUs of one type under mixed sizes."""
    return min(
        spans.count_disjoint((start, span) for start in starts),
        MAX_TIME_SLICED,
    )


def parse(text: str) -> Catalog:
    """Return the catalog in the text of a file.

    :raises MalformedError: the text is not a catalog of this format.
    """
    try:
        content = json_codec.loads(text)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        rows = content["gpus"]
        gpus = [_parse_gpu(row) for row in rows]
        types = [
            vgpu_type
            for row, gpu in zip(rows, gpus, strict=True)
            for vgpu_type in _parse_types(row, gpu)
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.MalformedError(
            "catalog of vGPU types",
            text[:40],
            f"JSON of format {FORMAT} ({error!r})",
        ) from error
    return Catalog(gpus, types)


def _parse_gpu(row: Mapping[str, Any]) -> CatalogGpu:
    return CatalogGpu(
        key=row["key"],
        product=row["product"],
        pci_ids=tuple(row["pci_ids"]),
        memory_mb=int(row["memory_mb"]),
        architecture=row["architecture"],
        compute_capability=row["compute_capability"],
        region=int(row.get("region", 0)),
        has_sriov=bool(row.get("sriov", False)),
        has_mixed=bool(row.get("mixed", False)),
        is_mig_capable="mig" in row,
        kinds=tuple(_parse_kinds(row.get("mig", {}).get("kinds", {}))),
        mig_region=int(row.get("mig", {}).get("memory_slices", 0)),
        mig_slices=int(row.get("mig", {}).get("compute_slices", 0)),
        traits=frozenset(row.get("traits", ())),
        is_complete=bool(row.get("complete", True)),
    )


def _parse_kinds(rows: Mapping[str, Any]) -> Iterator[model.InstanceKind]:
    for name, row in rows.items():
        yield model.InstanceKind(
            name=name,
            size=int(row["memory_slices"]),
            slices=int(row["compute_slices"]),
            starts=tuple(row["starts"]),
            limit=int(row["limit"]),
        )


def _parse_types(
    row: Mapping[str, Any], gpu: CatalogGpu
) -> Iterator[CatalogVgpuType]:
    """Yield a GPU's types; a row of ``sizes`` has all series of a size."""
    limits = {kind.name: kind.limit or 0 for kind in gpu.kinds}
    for size in row.get("sizes", ()):
        span, mixed = int(size.get("span", 0)), tuple(size.get("mixed", ()))
        instance = size.get("instance", "")
        shared = int(size.get("per_instance", 1))
        limit = limits[instance] * shared if instance else size["limit"]
        for name in size["types"]:
            yield CatalogVgpuType(
                name=f"{row['stem']}-{name}",
                gpu=gpu.key,
                framebuffer_mb=int(size["framebuffer_mb"]),
                limit=int(limit),
                limit_mixed=(
                    compute_mixed_limit(mixed, span) if mixed else None
                ),
                span=span,
                starts_mixed=mixed,
                starts_equal=tuple(size.get("equal", ())),
                instance=instance,
                per_instance=shared,
            )
