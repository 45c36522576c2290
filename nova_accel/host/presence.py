# SPDX-License-Identifier: Apache-2.0
"""Functions on the buses of a host, with their drivers and models.

They are compared in each pass, since uevents may be missing: the kernel
sends those of udevd to the network namespace of udevd only. A driver lists
its functions in one directory, so that VFs cost nothing each.
"""

import dataclasses
import errno
from collections.abc import Collection, Iterator, Mapping

from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import pci

# Grows with each uevent (Documentation/ABI/testing/sysfs-kernel-uevent_seqnum,
# lib/kobject_uevent.c): drivers bound, VFs and mdevs come and gone.
_COUNT = "/sys/kernel/uevent_seqnum"
_DRIVERS = "/sys/bus/pci/drivers"
#: Functions, mdev parents on any bus, and regions of FPGAs.
_LISTS = (
    host_reader.FUNCTIONS,
    host_reader.PARENTS,
    "/sys/class/fpga_region",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Functions of a host at some time, and their drivers.

    ``lists`` are the names by directory, or the errno of the failure;
    ``drivers`` are the names of drivers by function.
    """

    lists: Mapping[str, frozenset[str] | int]
    drivers: Mapping[str, str]

    def find_changes(self, earlier: "Presence") -> frozenset[str]:
        """Return the functions with another driver than earlier.

        "" is among them if a function, mdev parent or region came or left.
        """
        differences = self.drivers.items() ^ earlier.drivers.items()
        others = [""] if self.lists != earlier.lists else []
        return frozenset([*others, *(name for name, _ in differences)])


def read(source: fs.FileSource) -> Presence:
    """Return the functions of a host and their drivers.

    It takes one operation for each driver of PCI functions.
    """
    drivers = _list(source, _DRIVERS)
    return Presence(
        lists={place: _list(source, place) for place in _LISTS},
        drivers={
            name: driver
            for driver in (() if isinstance(drivers, int) else drivers)
            for name in _list_bound(source, driver)
        },
    )


def _list_bound(source: fs.FileSource, driver: str) -> Iterator[str]:
    """Yield the functions of a driver; none if it was just unloaded."""
    names = _list(source, f"{_DRIVERS}/{driver}")
    if not isinstance(names, int):
        yield from filter(pci.is_address, names)


def _list(source: fs.FileSource, path: str) -> frozenset[str] | int:
    try:
        return frozenset(source.names(path))
    except OSError as error:
        return error.errno or errno.EIO


def list_models(
    reader: host_reader.HostReader, offered: Collection[str]
) -> Mapping[str, str]:
    """Return path and expected text of the ``modalias`` of each card.

    VFs are left out: they come and go with their PF.

    :param offered: functions that are read whatever their kind is.
    :raises UnreadableError: the bus can't be listed.
    """
    return {
        f"{host_reader.FUNCTIONS}/{function.address}/modalias": text
        for function in reader.all_functions()
        if function.physfn is None
        and (
            str(function.address) in offered or pci_ids.is_candidate(function)
        )
        and (text := _build_modalias(function))
    }


def _build_modalias(function: pci.PciFunction) -> str:
    """Return the modalias of a function, empty if an id is unknown.

    Its form is that of modalias_show() in drivers/pci/pci-sysfs.c.
    """
    ids = {
        "v": function.vendor,
        "d": function.product,
        "sv": function.subsystem_vendor,
        "sd": function.subsystem_product,
    }
    if not all(ids.values()):
        return ""
    text = "".join([f"{key}{int(n, 16):08X}" for key, n in ids.items()])
    base, sub, interface = function.class_code.to_bytes(3, "big")
    return f"pci:{text}bc{base:02X}sc{sub:02X}i{interface:02X}\n"


def read_count(source: fs.FileSource) -> str | None:
    """Return the kernel's count of uevents, None if it can't be read."""
    try:
        return fs.Files(source).text(_COUNT)
    except errors.UnreadableError:
        return None
