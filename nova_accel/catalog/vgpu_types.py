# SPDX-License-Identifier: Apache-2.0
"""Catalog of NVIDIA's GPUs and vGPU types.

A host tells which types a card has and which it can make now. How they
share a card it doesn't tell: places under mixed sizes, kinds of GPU
instances, limits. That is here, by type name, because the numeric ids
change between driver releases. ``nova_accel.catalog.loader`` loads the file
that comes with the library; this module only reads its text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.model import names, strict_json

FORMAT = 1
# The driver's own stop for time-sliced vGPUs of one GPU, however many VFs
# it has: MAX_VGPU_DEVICES_PER_PGPU of NVIDIA's open GPU kernel modules.
MAX_TIME_SLICED = 32
_VENDOR_ID = "10de"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogVgpuType:
    """A vGPU type.

    ``name`` is without brand (``A40-8Q``), ``gpu`` the key of its GPU,
    ``framebuffer_mb`` in MiB. ``limit`` is how many a GPU holds when all
    have this size (for MIG: in all GPU instances together),
    ``limit_mixed`` how many under mixed sizes, None where the GPU has no
    such mode. ``span`` is its length in the GPU's region, 0 where it is
    not placed; ``starts_mixed`` and ``starts_equal`` are the allowed
    beginnings in either mode. ``instance`` is the kind of GPU instance
    it stands in, empty for time-sliced types, ``per_instance`` how many
    share one.
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
        """Return the trait of providers that can make one."""
        return mdev_names.profile_trait(self.name, _VENDOR_ID, gpu=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogGpu:
    """A GPU model.

    ``key`` is the stem that NVIDIA gives its types (``A40``), ``product``
    is for people. ``pci_ids`` are ``vendor:device`` or, where boards share
    those, ``vendor:device:subvendor:subdevice``. ``memory_mb`` is the
    framebuffer in MiB, enough for all that fits at once: where NVIDIA
    rounds up the sizes of types, that is a little more than there is.
    ``region`` is the length that mixed spans divide (0: not known or
    none), ``mig_region`` is the length of the region that GPU instances
    divide, in the unit of NVML's placements, and ``mig_slices`` the
    compute slices under MIG (0: no MIG). ``has_sriov`` tells
    whether vGPUs sit on VFs, ``has_mixed`` whether sizes may be mixed.
    ``compute_capability`` is CUDA's (``8.6``); ``traits`` are standard
    traits that are true of the card. ``is_complete`` is False for a GPU of
    which only the fields up to ``compute_capability`` are known.
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
        """Return whether sizes may be mixed, as far as is known."""
        return self.has_mixed or not self.is_complete

    @property
    def can_mig(self) -> bool:
        """Return whether the GPU has a MIG mode, as far as is known."""
        return self.is_mig_capable or not self.is_complete


class Catalog:
    """GPUs and types, found by name.

    :param gpus: in the order of the file.
    :param types: any order; names are unique.
    """

    def __init__(
        self, gpus: Iterable[CatalogGpu], types: Iterable[CatalogVgpuType]
    ) -> None:
        self._gpus = {gpu.key: gpu for gpu in gpus}
        self._types = {one.name: one for one in types}
        self._ids = {
            pci_id: gpu
            for gpu in self._gpus.values()
            for pci_id in gpu.pci_ids
        }

    def gpus(self) -> tuple[CatalogGpu, ...]:
        """Return all GPUs."""
        return tuple(self._gpus.values())

    def find(self, name: str) -> CatalogVgpuType | None:
        """Return the type of that name (without brand), or None."""
        return self._types.get(name)

    def by_trait(self) -> dict[str, CatalogVgpuType]:
        """Return all types, by the traits that name them."""
        return {one.trait: one for one in self._types.values()}

    def charges(self, one: CatalogVgpuType) -> dict[str, int]:
        """Return what one vGPU of a type takes of a card's counters."""
        found = {
            names.GPU_CLASS: 1,
            names.GPU_MEMORY_CLASS: one.framebuffer_mb,
        }
        gpu = self.gpu(one.gpu)
        if gpu is not None and one.per_instance == 1:
            for kind in gpu.kinds:
                if kind.name == one.instance:
                    found[names.MIG_SLICE_CLASS] = kind.slices
        return found

    def gpu(self, key: str) -> CatalogGpu | None:
        """Return the GPU of that key (``A40``), or None."""
        return self._gpus.get(key)

    def profiles_of(self, key: str) -> tuple[CatalogVgpuType, ...]:
        """Return all types of a GPU, smallest first; none if unknown."""
        return tuple(
            sorted(
                (one for one in self._types.values() if one.gpu == key),
                key=lambda one: (
                    bool(one.instance),
                    one.framebuffer_mb,
                    one.name,
                ),
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
        """Return the GPU that a card is, or None where it is not known.

        The names of its types decide, because that is the driver's own
        word; the PCI ids do where it offers none, or none that is known.

        :param profile_names: without brand, as many as are known.
        :param vendor_id: ids are four hex digits in lower case.
        """
        board = f"{vendor_id}:{product_id}"
        by_id = self._ids.get(
            f"{board}:{subsystem_vendor}:{subsystem_product}"
        ) or self._ids.get(board)
        named = {
            self._types[name].gpu
            for name in profile_names
            if name in self._types
        }
        if not named or (by_id and by_id.key in named):
            return by_id
        return self._gpus[named.pop()] if len(named) == 1 else None


def fit(starts: Iterable[int], span: int) -> int:
    """Return how many spans of one length go at these starts at once."""
    count = end = 0
    for start in sorted(starts):
        if start >= end:
            count += 1
            end = start + span
    return count


def parse(text: str) -> Catalog:
    """Return the catalogue that a file's text describes.

    :raises MalformedError: the text is no catalogue of this format.
    """
    try:
        content = strict_json.loads(text)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        rows = content["gpus"]
        gpus = [_gpu(row) for row in rows]
        types = [
            one
            for row, gpu in zip(rows, gpus, strict=True)
            for one in _types(row, gpu)
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.MalformedError(
            "catalogue of vGPU types",
            text[:40],
            f"JSON of format {FORMAT} ({error!r})",
        ) from error
    return Catalog(gpus, types)


def _gpu(row: Mapping[str, Any]) -> CatalogGpu:
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
        kinds=tuple(_kinds(row.get("mig", {}).get("kinds", {}))),
        mig_region=int(row.get("mig", {}).get("memory_slices", 0)),
        mig_slices=int(row.get("mig", {}).get("compute_slices", 0)),
        traits=frozenset(row.get("traits", ())),
        is_complete=bool(row.get("complete", True)),
    )


def _kinds(rows: Mapping[str, Any]) -> Iterator[model.InstanceKind]:
    for name, row in rows.items():
        yield model.InstanceKind(
            name=name,
            size=int(row["memory_slices"]),
            slices=int(row["compute_slices"]),
            starts=tuple(row["starts"]),
            limit=int(row["limit"]),
        )


def _types(
    row: Mapping[str, Any], gpu: CatalogGpu
) -> Iterator[CatalogVgpuType]:
    """Yield a GPU's types; one size is one row, however many series."""
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
                    min(fit(mixed, span), MAX_TIME_SLICED) if mixed else None
                ),
                span=span,
                starts_mixed=mixed,
                starts_equal=tuple(size.get("equal", ())),
                instance=instance,
                per_instance=shared,
            )
