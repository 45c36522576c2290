# SPDX-License-Identifier: Apache-2.0
"""Update the catalogue of vGPU types from a host.

For whoever keeps the library, on a host with a new driver or with an
archive of one (``nova-accel capture``)::

    python -m nova_accel.cli.refresh_catalog --root host.tar.gz \
        --output nova_accel/catalog/data/nvidia_vgpu.json

NVML says most, descriptions of mdev types some, the creatable types of a
VF only names.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nova_accel import errors
from nova_accel.catalog import loader, mdev_names, refresh
from nova_accel.cli import commands
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.host.sysfs import host_reader

_NVIDIA = "10de"
# "1155  : NVIDIA L40S-24Q", below a header (NVIDIA's nv-vfio-pci)
_LISTED = re.compile(r"^\d+\s*: (.+?)\s*$", re.MULTILINE)
_NOTHING, _CHANGES, _BAD_INPUT = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 when the host shows nothing that the catalogue doesn't know, 1 when
    it does, 2 for input that can't be used.
    """
    parser = argparse.ArgumentParser(
        prog="python -m nova_accel.cli.refresh_catalog",
        description="Compare the catalogue of vGPU types with a host.",
    )
    parser.add_argument(
        "--root",
        default="/",
        metavar="DIR|ARCHIVE",
        help="what to read instead of this machine",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write the catalogue with the new"
    )
    arguments = parser.parse_args(argv)
    try:
        host, _ = commands.open_host(arguments.root)
        seen = tuple(read_seen(host))
        findings = refresh.compare(loader.load(), seen) + _kinds(host)
        if arguments.output:
            Path(arguments.output).write_text(
                refresh.merge(loader.text(), seen), encoding="utf-8"
            )
    except (errors.AcceleratorError, OSError) as error:
        print(f"refresh_catalog: {error}", file=sys.stderr)
        return _BAD_INPUT
    for finding in findings:
        print(f"{finding.name} {finding.text}")
    print(f"{len({one.name for one in seen})} types, {len(findings)} findings")
    return _CHANGES if findings else _NOTHING


def read_seen(host: host_reader.HostReader) -> Iterator[refresh.HostType]:
    """Yield what a host shows of NVIDIA's types; most of it first.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    scan.read(host, plugin.load(), policy.Policy())
    ids = {
        str(function.address): f"{function.vendor}:{function.product}"
        for function in host.functions()
        if function.vendor == _NVIDIA
    }
    told = [*_from_nvml(host, ids), *_from_mdev(host, ids)]
    yield from told
    names = {one.name for one in told}
    for one in _from_lists(host, ids):
        if one.name not in names:
            yield one


def _kinds(
    host: host_reader.HostReader,
) -> tuple[refresh.CatalogDifference, ...]:
    """Return the kinds of GPU instance of which NVML says other than us."""
    found = [
        finding
        for gpu in host.gpus.values()
        for finding in refresh.compare_kinds(
            loader.load().of_card(one.name for one in gpu.types), gpu.kinds
        )
    ]
    return tuple(dict.fromkeys(found))


def _from_nvml(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[refresh.HostType]:
    for gpu in host.gpus.values():
        for one in gpu.types:
            yield refresh.HostType(
                name=one.name,
                pci_id=ids.get(gpu.address, ""),
                framebuffer_mb=one.framebuffer_mb,
                limit=one.max_instances,
                instance=one.instance,
                per_instance=one.per_instance,
            )


def _from_mdev(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[refresh.HostType]:
    for parent in host.mdev_parents():
        for one in parent.types if parent.name in ids else ():
            facts = mdev_names.parse_description(one.description)
            if one.label:
                yield refresh.HostType(
                    name=mdev_names.strip_brand(one.label),
                    pci_id=ids[parent.name],
                    framebuffer_mb=facts.memory_mb,
                    limit=facts.max_instances,
                )


def _from_lists(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[refresh.HostType]:
    for address, pci_id in ids.items():
        try:
            text = host.attribute(address, "nvidia/creatable_vgpu_types")
        except errors.UnreadableError:
            continue  # no VF of the vendor's VFIO
        for label in _LISTED.findall(text):
            yield refresh.HostType(
                name=mdev_names.strip_brand(label), pci_id=pci_id
            )


if __name__ == "__main__":
    sys.exit(main())
