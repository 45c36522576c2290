# SPDX-License-Identifier: Apache-2.0
"""Update the catalog of vGPU types from a host.

For maintainers of the library, on a host with a new driver or with an
archive of one (``nova-accel capture``)::

    python tools/refresh_catalog.py --root host.tar.gz \
        --output nova_accel/catalog/data/nvidia_vgpu.json

NVML has most fields of a type, descriptions of mdev types have some, and
the creatable types of a VF only names.

``merge`` adds new types with the facts of the host. Contradictions are only
reported: maintainers decide. No host reports all starts under mixed sizes,
so a new type has none: it is offered while the driver reports it as
available.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import loader, mdev_names, vgpu_types
from nova_accel.cli import host_source
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.host.sysfs import host_reader

_NVIDIA = "10de"
# "1155  : NVIDIA L40S-24Q", below a header (NVIDIA's nv-vfio-pci).
_LISTED = re.compile(r"^\d+\s*: (.+?)\s*$", re.MULTILINE)
_NOTHING, _CHANGES, _BAD_INPUT = 0, 1, 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostType:
    """A type as a host reports it; None and empty where it does not.

    ``pci_id`` is ``vendor:device`` of the card.
    """

    name: str
    pci_id: str = ""
    framebuffer_mb: int | None = None
    limit: int | None = None
    instance: str | None = None
    per_instance: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CatalogDifference:
    """A difference between a host and the catalog.

    ``is_added`` is True for a new type that ``merge`` adds.
    """

    name: str
    text: str
    is_added: bool = False


def compare(
    catalog: vgpu_types.Catalog, host_types: Iterable[HostType]
) -> tuple[CatalogDifference, ...]:
    """Return the new types and the contradictions of a host."""
    differences: dict[CatalogDifference, None] = {}
    for host_type in host_types:
        listed = catalog.find(host_type.name)
        if listed is None:
            differences[_report_new(catalog, host_type)] = None
            continue
        for field in ("framebuffer_mb", "limit", "instance", "per_instance"):
            value, expected = getattr(host_type, field), getattr(listed, field)
            if value is not None and value != expected:
                text = f"{field} is {value} on the host, {expected} here"
                differences[
                    CatalogDifference(name=host_type.name, text=text)
                ] = None
    return tuple(differences)


def _report_new(
    catalog: vgpu_types.Catalog, host_type: HostType
) -> CatalogDifference:
    gpu = catalog.of_card((), *host_type.pci_id.split(":"))
    if gpu is None:
        return CatalogDifference(
            name=host_type.name,
            text=f"is new, of a GPU that is not known ({host_type.pci_id}):"
            " write its row by hand",
        )
    if (
        host_type.framebuffer_mb is None
        or host_type.limit is None
        or (
            host_type.instance is None
            and mdev_names.parse_instance_kind(host_type.name)
        )
    ):
        return CatalogDifference(
            name=host_type.name,
            text=f"is new for {gpu.key}; the host reports too few facts of"
            " it: run this on a host with NVML",
        )
    return CatalogDifference(
        name=host_type.name, text=f"is new for {gpu.key}", is_added=True
    )


def compare_kinds(
    gpu: vgpu_types.CatalogGpu | None, kinds: Iterable[model.InstanceKind]
) -> tuple[CatalogDifference, ...]:
    """Return the kinds of GPU instance that differ from the catalog.

    Kinds without vGPU types in the catalog are ignored.
    """
    listed = {kind.name: kind for kind in gpu.kinds} if gpu else {}
    return tuple(
        CatalogDifference(
            name=f"{gpu.key} {kind.name}",
            text=f"is {_describe(kind)} on the host,"
            f" {_describe(listed[kind.name])} here",
        )
        for kind in kinds
        if gpu and listed.get(kind.name, kind) != kind
    )


def _describe(kind: model.InstanceKind) -> str:
    starts = ",".join(map(str, kind.starts))
    return (
        f"{kind.limit} of {kind.slices} slices, placements"
        f" {{{starts}}}:{kind.size}"
    )


def merge(text: str, host_types: Iterable[HostType]) -> str:
    """Return the text of the catalog file with new types added.

    :param text: the present file.
    :raises MalformedError: the present or the new text is not a catalog.
    """
    catalog = vgpu_types.parse(text)
    content = json.loads(text)
    by_name = {host_type.name: host_type for host_type in host_types}
    for difference in compare(catalog, by_name.values()):
        if difference.is_added:
            _add(content, catalog, by_name[difference.name])
    merged = render(content)
    vgpu_types.parse(merged)
    return merged


def _add(
    content: Mapping[str, Any],
    catalog: vgpu_types.Catalog,
    host_type: HostType,
) -> None:
    """Add a type to the row of its size, which may be new."""
    gpu = catalog.of_card((), *host_type.pci_id.split(":"))
    row = next(r for r in content["gpus"] if gpu and r["key"] == gpu.key)
    stem = f"{row['stem']}-"
    if not host_type.name.startswith(stem):
        raise errors.MalformedError(
            "vGPU type name",
            host_type.name,
            f"{stem}... on {gpu and gpu.product}",
        )
    suffix = host_type.name.removeprefix(stem)
    kinds = row.get("mig", {}).get("kinds", ())
    if host_type.instance and host_type.instance not in kinds:
        raise errors.MalformedError(
            "kind of GPU instance",
            host_type.instance,
            "one of the GPU's row",
        )
    size: dict[str, Any] = {"framebuffer_mb": host_type.framebuffer_mb}
    if host_type.instance:
        size["instance"] = host_type.instance
        if (host_type.per_instance or 1) > 1:
            size["per_instance"] = host_type.per_instance
    else:
        size["limit"] = host_type.limit
    for other in row["sizes"]:
        if size.items() <= other.items():
            other["types"] = sorted({*other["types"], suffix})
            return
    row["sizes"].append({**size, "types": [suffix]})


def render(content: Mapping[str, Any]) -> str:
    """Return the text of the file, with one line per size and per kind.

    So the change of one type is a change of one line.
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
    body = f"\n{sizes}\n   " if sizes else ""
    lines.append(f'   "sizes": [{body}]')
    return "  {\n" + ",\n".join(lines) + "\n  }"


def _render_mig(mig: Mapping[str, Any]) -> str:
    kinds = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(kind)}"
        for name, kind in mig["kinds"].items()
    )
    fields = ", ".join(
        f"{json.dumps(key)}: {json.dumps(value)}"
        for key, value in mig.items()
        if key != "kinds"
    )
    return f'   "mig": {{{fields}, "kinds": {{\n{kinds}\n   }}}}'


def read_seen(host: host_reader.HostReader) -> Iterator[HostType]:
    """Yield NVIDIA's types on a host, those with the most fields first.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    scan.read(host, plugin.load(), policy.DeviceRules())
    ids = {
        str(function.address): f"{function.vendor}:{function.product}"
        for function in host.functions()
        if function.vendor == _NVIDIA
    }
    described = [*_from_nvml(host, ids), *_from_mdev(host, ids)]
    yield from described
    names = {host_type.name for host_type in described}
    for host_type in _from_lists(host, ids):
        if host_type.name not in names:
            yield host_type


def _compare_kinds(
    host: host_reader.HostReader,
) -> tuple[CatalogDifference, ...]:
    """Return the differences in kinds of GPU instances."""
    differences = [
        difference
        for gpu in host.gpus.values()
        for difference in compare_kinds(
            loader.load().of_card(vgpu_type.name for vgpu_type in gpu.types),
            gpu.kinds,
        )
    ]
    return tuple(dict.fromkeys(differences))


def _from_nvml(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[HostType]:
    for gpu in host.gpus.values():
        for vgpu_type in gpu.types:
            yield HostType(
                name=vgpu_type.name,
                pci_id=ids.get(gpu.address, ""),
                framebuffer_mb=vgpu_type.framebuffer_mb,
                limit=vgpu_type.max_instances,
                instance=vgpu_type.instance,
                per_instance=vgpu_type.per_instance,
            )


def _from_mdev(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[HostType]:
    for parent in host.mdev_parents():
        for mdev_type in parent.types if parent.name in ids else ():
            description = mdev_names.parse_description(mdev_type.description)
            if mdev_type.label:
                yield HostType(
                    name=mdev_names.strip_brand(mdev_type.label),
                    pci_id=ids[parent.name],
                    framebuffer_mb=description.memory_mb,
                    limit=description.max_instances,
                )


def _from_lists(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[HostType]:
    for address, pci_id in ids.items():
        try:
            text = host.attribute(address, "nvidia/creatable_vgpu_types")
        except errors.UnreadableError:
            continue  # no VF of NVIDIA's vendor-specific VFIO
        for label in _LISTED.findall(text):
            yield HostType(name=mdev_names.strip_brand(label), pci_id=pci_id)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 if the catalog has all types of the host, 1 if they differ, 2 for
    invalid input.
    """
    parser = argparse.ArgumentParser(
        prog="python tools/refresh_catalog.py",
        description="Print the vGPU types of a host that the catalog lacks,"
        " and contradictions between both. Example: python"
        " tools/refresh_catalog.py --root host.tar.gz",
        epilog="exit status: 0 the catalog has all types of the host; 1 it"
        " differs; 2 the input can't be used.",
    )
    parser.add_argument(
        "--root",
        default="/",
        metavar="DIR|ARCHIVE",
        help="read another machine from this directory, which has sys/, or"
        " from this archive of `nova-accel capture`",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write the catalog with the new types to this file (default:"
        " print the differences only)",
    )
    arguments = parser.parse_args(argv)
    try:
        host, _ = host_source.open_host(arguments.root)
        host_types = tuple(read_seen(host))
        findings = compare(loader.load(), host_types)
        findings += _compare_kinds(host)
        if arguments.output:
            Path(arguments.output).write_text(
                merge(loader.text(), host_types), encoding="utf-8"
            )
    except (errors.AcceleratorError, OSError) as error:
        print(f"refresh_catalog: {error}", file=sys.stderr)
        return _BAD_INPUT
    for finding in findings:
        print(f"{finding.name} {finding.text}")
    count = len({host_type.name for host_type in host_types})
    print(f"{count} types, {len(findings)} findings")
    return _CHANGES if findings else _NOTHING


if __name__ == "__main__":
    sys.exit(main())
