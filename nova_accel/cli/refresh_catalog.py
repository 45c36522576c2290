# SPDX-License-Identifier: Apache-2.0
"""Update the catalog of vGPU types from a host.

For maintainers of the library, on a host with a new driver or with an
archive of one (``nova-accel capture``)::

    python -m nova_accel.cli.refresh_catalog --root host.tar.gz \
        --output nova_accel/catalog/data/nvidia_vgpu.json

NVML has most fields of a type, descriptions of mdev types have some, and
the creatable types of a VF only names.
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
# "1155  : NVIDIA L40S-24Q", below a header (NVIDIA's nv-vfio-pci).
_LISTED = re.compile(r"^\d+\s*: (.+?)\s*$", re.MULTILINE)
_NOTHING, _CHANGES, _BAD_INPUT = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 if the catalog has all types of the host, 1 if they differ, 2 for
    invalid input.
    """
    parser = argparse.ArgumentParser(
        prog="python -m nova_accel.cli.refresh_catalog",
        description="Print the vGPU types of a host that the catalog lacks,"
        " and contradictions between both. Example: python -m"
        " nova_accel.cli.refresh_catalog --root host.tar.gz",
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
        host, _ = commands.open_host(arguments.root)
        host_types = tuple(read_seen(host))
        findings = refresh.compare(loader.load(), host_types)
        findings += _compare_kinds(host)
        if arguments.output:
            Path(arguments.output).write_text(
                refresh.merge(loader.text(), host_types), encoding="utf-8"
            )
    except (errors.AcceleratorError, OSError) as error:
        print(f"refresh_catalog: {error}", file=sys.stderr)
        return _BAD_INPUT
    for finding in findings:
        print(f"{finding.name} {finding.text}")
    count = len({host_type.name for host_type in host_types})
    print(f"{count} types, {len(findings)} findings")
    return _CHANGES if findings else _NOTHING


def read_seen(host: host_reader.HostReader) -> Iterator[refresh.HostType]:
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
) -> tuple[refresh.CatalogDifference, ...]:
    """Return the differences in kinds of GPU instances."""
    differences = [
        difference
        for gpu in host.gpus.values()
        for difference in refresh.compare_kinds(
            loader.load().of_card(vgpu_type.name for vgpu_type in gpu.types),
            gpu.kinds,
        )
    ]
    return tuple(dict.fromkeys(differences))


def _from_nvml(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[refresh.HostType]:
    for gpu in host.gpus.values():
        for vgpu_type in gpu.types:
            yield refresh.HostType(
                name=vgpu_type.name,
                pci_id=ids.get(gpu.address, ""),
                framebuffer_mb=vgpu_type.framebuffer_mb,
                limit=vgpu_type.max_instances,
                instance=vgpu_type.instance,
                per_instance=vgpu_type.per_instance,
            )


def _from_mdev(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[refresh.HostType]:
    for parent in host.mdev_parents():
        for mdev_type in parent.types if parent.name in ids else ():
            description = mdev_names.parse_description(mdev_type.description)
            if mdev_type.label:
                yield refresh.HostType(
                    name=mdev_names.strip_brand(mdev_type.label),
                    pci_id=ids[parent.name],
                    framebuffer_mb=description.memory_mb,
                    limit=description.max_instances,
                )


def _from_lists(
    host: host_reader.HostReader, ids: dict[str, str]
) -> Iterator[refresh.HostType]:
    for address, pci_id in ids.items():
        try:
            text = host.attribute(address, "nvidia/creatable_vgpu_types")
        except errors.UnreadableError:
            continue  # no VF of NVIDIA's vendor-specific VFIO
        for label in _LISTED.findall(text):
            yield refresh.HostType(
                name=mdev_names.strip_brand(label), pci_id=pci_id
            )


if __name__ == "__main__":
    sys.exit(main())
