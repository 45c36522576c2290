# SPDX-License-Identifier: Apache-2.0
"""State of PCI functions before and after a reset."""

import dataclasses
import errno
import struct
from collections.abc import Iterable, Sequence

from nova_accel import errors
from nova_accel.claims import card_reset, scrub
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import pci

_FUNCTIONS = host_reader.FUNCTIONS
# First Linux release with reset_method.
_NAMES_METHODS = (5, 15)


def read(
    root: str, addresses: Iterable[str]
) -> tuple[card_reset.BusFunctions, ...]:
    """Return the present state of a guest's functions, by bus.

    Functions that do not exist are left out.

    :raises UnreadableError: their existence or drivers can't be read.
    """
    return read_buses(fs.Files(fs.DiskSource(root)), addresses)


def read_buses(
    files: fs.Files, addresses: Iterable[str]
) -> tuple[card_reset.BusFunctions, ...]:
    """Return the functions that go to one guest together, by bus.

    :param addresses: the functions, the assigned one first.
    :raises UnreadableError: a function, its driver or the bus can't be
        read.
    """
    buses: dict[str, list[card_reset.ReleasedFunction]] = {}
    for address in addresses:
        if not files.is_gone(f"{_FUNCTIONS}/{address}"):
            function = _read_function(files, address)
            buses.setdefault(_bus(address), []).append(function)
    return tuple(_read_bus(files, functions) for functions in buses.values())


def _read_bus(
    files: fs.Files, functions: Sequence[card_reset.ReleasedFunction]
) -> card_reset.BusFunctions:
    """Return the functions with the rest of their bus, if that matters.

    The bus of a single function that has its own reset is not read: there
    may be hundreds of VFs.
    """
    alone = card_reset.BusFunctions(functions=tuple(functions))
    is_single = len(functions) == 1
    if is_single and functions[0].methods and not functions[0].has_bus_method:
        return alone
    own = {function.address for function in functions}
    bus = _bus(functions[0].address)
    place = files.resolve(f"{_FUNCTIONS}/{functions[0].address}")
    above = place.rpartition("/")[0].rpartition("/")[2]
    return dataclasses.replace(
        alone,
        others=tuple(
            name
            for name in files.names(_FUNCTIONS)
            if name not in own and pci.is_address(name) and _bus(name) == bus
        ),
        bridge=above if pci.is_address(above) else "",
    )


def _bus(address: str) -> str:
    return address.rpartition(":")[0]


def _read_function(
    files: fs.Files, address: str
) -> card_reset.ReleasedFunction:
    """Return a function with its driver and its reset methods.

    ``reset`` and ``reset_method`` exist only if the kernel found a method,
    and an empty ``reset_method`` disables all of them
    (Documentation/ABI/testing/sysfs-bus-pci). Kernels before 5.15 lack
    ``reset_method``.
    """
    place = f"{_FUNCTIONS}/{address}"
    names = files.names(place)
    bound = _read_driver(files, place) if "driver" in names else ""
    methods: tuple[str, ...] = ()
    unread = ""
    if "reset_method" in names:
        try:
            methods = tuple(files.text(f"{place}/reset_method").split())
        except errors.UnreadableError as error:
            methods, unread = (card_reset.UNNAMED,), str(error)
    elif "reset" in names:
        methods = (card_reset.UNNAMED,)
    return card_reset.ReleasedFunction(
        address=address,
        driver="" if pci.is_for_guests(bound) else bound,
        bound=bound,
        methods=methods,
        is_known=bool(methods) or _shows_resets(files),
        is_disabled="reset_method" in names and not methods,
        unread=unread,
    )


def _read_driver(files: fs.Files, place: str) -> str:
    try:
        return files.link(f"{place}/driver")
    except errors.UnreadableError as error:
        if error.number == errno.ENOENT:
            return ""  # unbound meanwhile
        raise


def _shows_resets(files: fs.Files) -> bool:
    """Return whether a function without reset files has no reset.

    A capture may lack these files of all functions; then their absence
    proves nothing.
    """
    reader = host_reader.HostReader(files=files)
    if reader.kernel_version() >= _NAMES_METHODS:
        return True
    return any(
        not {"reset", "reset_method"}.isdisjoint(_list_names(files, name))
        for name in files.names(_FUNCTIONS)
    )


def _list_names(files: fs.Files, name: str) -> tuple[str, ...]:
    try:
        return files.names(f"{_FUNCTIONS}/{name}")
    except errors.UnreadableError:
        return ()


def read_ids(root: str, address: str) -> tuple[str, str]:
    """Return vendor and product id as four hex digits, empty if unknown."""
    try:
        vendor, product = _ids(fs.Files(fs.DiskSource(root)), address)
    except (ValueError, errors.UnreadableError):
        return "", ""
    return f"{vendor:04x}", f"{product:04x}"


def is_answering(root: str, address: str) -> bool:
    """Return whether a function answers; False if it can't be read.

    Configuration space is read from the device, unlike ``vendor`` and
    ``device``, which the kernel caches.
    """
    if not pci.is_address(address):
        return False
    source = fs.DiskSource(root)
    files = fs.Files(source)
    place = f"{_FUNCTIONS}/{address}"
    try:
        header = source.head(f"{place}/config", scrub.HEADER_SIZE)
        is_virtual = "physfn" in files.names(place)
        identity = None
        if not is_virtual:
            vendor, product = _ids(files, address)
            identity = struct.pack("<HH", vendor, product)
    except (OSError, ValueError, struct.error, errors.UnreadableError):
        return False
    return scrub.is_answer(header, identity)


def _ids(files: fs.Files, address: str) -> tuple[int, int]:
    place = f"{_FUNCTIONS}/{address}"
    vendor, product = (
        int(files.text(f"{place}/{name}"), 16) for name in ("vendor", "device")
    )
    return vendor, product
