# SPDX-License-Identifier: Apache-2.0
"""Comparison of a host's vGPU types with the catalogue.

What is new is added as far as it is known; what contradicts the catalogue
is told, and stays as it is: people decide. Places under mixed sizes are
told by no host in full, so a new type has none: it is offered by the
driver's own word.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import mdev_names, vgpu_types


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostType:
    """A type as a host shows it; None and empty where it does not say.

    ``pci_id`` is ``vendor:device`` of the card that showed it.
    """

    name: str
    pci_id: str = ""
    framebuffer_mb: int | None = None
    limit: int | None = None
    instance: str | None = None
    per_instance: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CatalogDifference:
    """What a host shows that the catalogue does not, or denies."""

    name: str
    text: str
    is_added: bool = False


def compare(
    known: vgpu_types.Catalog, seen: Iterable[HostType]
) -> tuple[CatalogDifference, ...]:
    """Return what is new and what contradicts, a line for each."""
    findings: dict[CatalogDifference, None] = {}
    for one in seen:
        facts = known.find(one.name)
        if facts is None:
            findings[_missing(known, one)] = None
            continue
        for field in ("framebuffer_mb", "limit", "instance", "per_instance"):
            told, listed = getattr(one, field), getattr(facts, field)
            if told is not None and told != listed:
                text = f"{field} is {told} on the host, {listed} here"
                findings[CatalogDifference(name=one.name, text=text)] = None
    return tuple(findings)


def _missing(known: vgpu_types.Catalog, one: HostType) -> CatalogDifference:
    gpu = known.of_card((), *one.pci_id.split(":"))
    if gpu is None:
        return CatalogDifference(
            name=one.name,
            text=f"is new, of a GPU that is not known ({one.pci_id}): write"
            " its row by hand",
        )
    if (
        one.framebuffer_mb is None
        or one.limit is None
        or (one.instance is None and mdev_names.named_instance(one.name))
    ):
        return CatalogDifference(
            name=one.name,
            text=f"is new for {gpu.key}; the host doesn't tell enough of"
            " it: run this where NVML is",
        )
    return CatalogDifference(
        name=one.name, text=f"is new for {gpu.key}", is_added=True
    )


def compare_kinds(
    gpu: vgpu_types.CatalogGpu | None, kinds: Iterable[model.InstanceKind]
) -> tuple[CatalogDifference, ...]:
    """Return which kinds of GPU instance differ from a GPU's in here.

    Kinds that no vGPU type of the catalogue stands in are nobody's loss.
    """
    listed = {kind.name: kind for kind in gpu.kinds} if gpu else {}
    return tuple(
        CatalogDifference(
            name=f"{gpu.key} {kind.name}",
            text=f"is {_words(kind)} on the host, {_words(listed[kind.name])}"
            " here",
        )
        for kind in kinds
        if gpu and listed.get(kind.name, kind) != kind
    )


def _words(kind: model.InstanceKind) -> str:
    starts = ",".join(map(str, kind.starts))
    return (
        f"{kind.limit} of {kind.slices} slices, placements"
        f" {{{starts}}}:{kind.size}"
    )


def merge(text: str, seen: Iterable[HostType]) -> str:
    """Return the catalogue's file with the types that are new in it.

    :param text: the file as it is.
    :raises MalformedError: it is no catalogue, or would be none.
    """
    known = vgpu_types.parse(text)
    content = json.loads(text)
    shown = {one.name: one for one in seen}
    for finding in compare(known, shown.values()):
        if finding.is_added:
            _add(content, known, shown[finding.name])
    merged = render(content)
    vgpu_types.parse(merged)
    return merged


def _add(
    content: Mapping[str, Any], known: vgpu_types.Catalog, one: HostType
) -> None:
    """Add a type to the row of its size, which may be a new one."""
    gpu = known.of_card((), *one.pci_id.split(":"))
    row = next(r for r in content["gpus"] if gpu and r["key"] == gpu.key)
    stem = f"{row['stem']}-"
    if not one.name.startswith(stem):
        raise errors.MalformedError(
            "vGPU type name", one.name, f"{stem}... on {gpu and gpu.product}"
        )
    tail = one.name.removeprefix(stem)
    if one.instance and one.instance not in row.get("mig", {}).get(
        "kinds", ()
    ):
        raise errors.MalformedError(
            "kind of GPU instance", one.instance, "one of the GPU's row"
        )
    size: dict[str, Any] = {"framebuffer_mb": one.framebuffer_mb}
    if one.instance:
        size["instance"] = one.instance
        if (one.per_instance or 1) > 1:
            size["per_instance"] = one.per_instance
    else:
        size["limit"] = one.limit
    for other in row["sizes"]:
        if size.items() <= other.items():
            other["types"] = sorted({*other["types"], tail})
            return
    row["sizes"].append({**size, "types": [tail]})


def render(content: Mapping[str, Any]) -> str:
    """Return the file's text: a line for each size and each kind.

    So a change of one type is a change of one line.
    """
    rows = ",\n".join(_render_gpu(row) for row in content["gpus"])
    return f'{{\n "format": {content["format"]},\n "gpus": [\n{rows}\n ]\n}}\n'


def _render_gpu(row: Mapping[str, Any]) -> str:
    lines = [
        f"   {json.dumps(key)}: {json.dumps(value)}"
        for key, value in row.items()
        if key not in ("mig", "sizes")
    ]
    if "mig" in row:
        lines.append(_render_mig(row["mig"]))
    sizes = ",\n".join(f"    {json.dumps(size)}" for size in row["sizes"])
    inner = f"\n{sizes}\n   " if sizes else ""
    lines.append(f'   "sizes": [{inner}]')
    return "  {\n" + ",\n".join(lines) + "\n  }"


def _render_mig(mig: Mapping[str, Any]) -> str:
    kinds = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(kind)}"
        for name, kind in mig["kinds"].items()
    )
    head = ", ".join(
        f"{json.dumps(key)}: {json.dumps(value)}"
        for key, value in mig.items()
        if key != "kinds"
    )
    return f'   "mig": {{{head}, "kinds": {{\n{kinds}\n   }}}}'
