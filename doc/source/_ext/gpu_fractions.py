# SPDX-License-Identifier: Apache-2.0
"""Directive ``fractions``: the profiles of an eighth to the whole of a GPU."""

from collections.abc import Iterator, Sequence
from typing import Any

import generated
from docutils import nodes
from docutils.parsers import rst

from nova_accel.catalog import loader, vgpu_types

#: Shares of a GPU, as the numbers of vGPUs that it is divided into.
SHARES = (8, 4, 2, 1)
#: Series in the order of preference: workstation, compute.
_SERIES = ("Q", "C")
# By the begin of their names: A800-5C is of the size of A100-5C.
_ALIKE = ("A800", "H800")


def list_rows(catalog: vgpu_types.Catalog) -> list[tuple[str, ...]]:
    """Return model, profile of each share, and the profile of the whole card.

    A GPU has a row for time-sliced vGPUs and one for its MIG mode, where the
    catalog has types of it. A share without a type is empty. Models that have
    the sizes of another one, which the page names, are left out.
    """
    rows = []
    for gpu in catalog.gpus():
        if gpu.key.startswith(_ALIKE):
            continue
        types = catalog.profiles_of(gpu.key)
        shared = [t for t in types if not t.instance]
        name = gpu.product.removeprefix("NVIDIA ").removeprefix("Tesla ")
        whole = ":".join(gpu.pci_ids[0].split(":")[:2])
        if shared:
            rows.append((name, *_list_shared(shared), whole))
        if len(shared) < len(types):
            rows.append((f"{name}, MIG", *_list_instances(gpu, types), whole))
    return rows


def _list_shared(
    types: Sequence[vgpu_types.CatalogVgpuType],
) -> Iterator[str]:
    for share in SHARES:
        yield _choose([t for t in types if t.limit == share])


def _list_instances(
    gpu: vgpu_types.CatalogGpu,
    types: Sequence[vgpu_types.CatalogVgpuType],
) -> Iterator[str]:
    # The memory slices of a card are not always divisible by eight; of equal
    # kinds those with the most compute slices count, of which enough fit.
    for share in SHARES:
        kinds = [
            kind
            for kind in gpu.kinds
            if kind.size * share == gpu.mig_region
            and "+" not in kind.name
            and "-" not in kind.name
            and (kind.limit or 0) * 4 >= share * 3
        ]
        kinds.sort(key=lambda kind: kind.slices)
        name = kinds[-1].name if kinds else ""
        yield _choose(
            [t for t in types if t.instance == name and t.per_instance == 1]
            if name
            else []
        )


def _choose(types: Sequence[vgpu_types.CatalogVgpuType]) -> str:
    for series in _SERIES:
        for vgpu_type in types:
            if vgpu_type.name.endswith(series):
                return vgpu_type.name
    return ""


class _Fractions(rst.Directive):
    """``.. fractions::``, a table with a row for each model and mode."""

    def run(self) -> list[nodes.Node]:
        head = ("Model", "1/8", "1/4", "1/2", "1, as vGPU", "1, whole")
        widths = (30, 14, 14, 14, 14, 14)
        return [generated.make_table(widths, head, list_rows(loader.load()))]


def setup(app: Any) -> dict[str, bool]:
    """Add the directive to Sphinx."""
    app.add_directive("fractions", _Fractions)
    return {"parallel_read_safe": True}
