# SPDX-License-Identifier: Apache-2.0
"""Serial numbers of the functions that servers have, by slot.

The slot of a function is its PCI address. After renumbered PCI buses or
swapped disks, another device may have the address, with the data of another
server. A note per slot has the server and the serial numbers of its device:
that of an NVMe controller (drivers/nvme/host/sysfs.c, ``serial``) and the
PCI Device Serial Number.

A VF of an NVMe controller is identified by the numbers of its PF and its
VF index. Other VFs have no data that survives a reset, and no numbers. A
number that can't be read, such as that of an NVMe controller in a guest, is
unknown and never causes a refusal.
"""

import logging
import os
from collections.abc import Mapping

from nova_accel import errors
from nova_accel.host.execute import privileged
from nova_accel.host.state import notes
from nova_accel.host.sysfs import fs, host_reader

LOG = logging.getLogger(__name__)

# Non-volatile memory controllers (PCI Code and ID notes.Assignment, 1.9).
_NVME_CLASS = "0x0108"
Numbers = Mapping[str, str]


class SerialNumbers:
    """Serial numbers by slot; call it with the card's lock held."""

    def __init__(
        self,
        store: notes.NoteStore[notes.Assignment],
        root: str = "/",
    ) -> None:
        """Compare with the notes of a store.

        :param root: the directory that holds ``sys``.
        """
        self._notes = store
        self._root = root

    def check(self, server: str, address: str) -> None:
        """Store the device of a server's slot, or refuse another device.

        :raises ClaimError: the slot has another device than when it was
            assigned to the server, or the device of another server's slot.
        """
        assignments = self._read()
        present = read_numbers(self._root, address)
        assignment = assignments.get(address)
        before: Numbers = {}
        if assignment is not None and assignment.server == server:
            before = _known_numbers(assignment)
            if reason := self._mismatch(address, before, present):
                raise errors.ClaimError(server, reason)
        if reason := self._moved(address, assignments, present):
            raise errors.ClaimError(server, reason)
        if assignment is not None and assignment.server is None:
            return  # another release may have written the note: it stays
        if present and present != before:
            self._write(server, address, {**before, **present})
        elif assignment is not None and assignment.server != server:
            self._notes.remove_or_ignore(address)

    def describe_mismatch(self, address: str) -> str:
        """Return why a slot has another device than its note, or empty."""
        assignments = self._read()
        if not assignments:
            return ""
        present = read_numbers(self._root, address)
        assignment = assignments.get(address)
        before = _known_numbers(assignment) if assignment else {}
        return self._mismatch(address, before, present) or self._moved(
            address, assignments, present
        )

    def _is_in_place(self, assignment: notes.Assignment) -> bool:
        """Return whether a slot still has its device.

        Functions of one card, or all cards of a model, may share a number.
        """
        present = read_numbers(self._root, assignment.address)
        return _is_same(_known_numbers(assignment), present)

    def _moved(
        self,
        address: str,
        assignments: Mapping[str, notes.Assignment],
        present: Numbers,
    ) -> str:
        """Return why the device at an address belongs to another slot.

        A note stays until the device is scrubbed, so it counts also if no
        server has the slot now: a server whose slot is not on the host has
        no claim.
        """
        for other in assignments.values():
            if (
                other.address != address
                and _is_same(_known_numbers(other), present)
                and not self._is_in_place(other)
            ):
                return (
                    f"{address} is now the device ({_describe(present)}) that"
                    f" server {other.server} had as {other.address}, and may"
                    f" hold its data; {self._hint(other.address)}"
                )
        return ""

    def _mismatch(
        self, address: str, before: Numbers, present: Numbers
    ) -> str:
        if not any(
            before[kind] != present[kind] for kind in before.keys() & present
        ):
            return ""
        return (
            f"{address} is another device than the server was given: it has"
            f" {_describe(present)}, the server's has {_describe(before)}; it"
            f" may hold data of another server; {self._hint(address)}"
        )

    def _hint(self, address: str) -> str:
        path = os.path.join(self._notes.path, notes.file_name(address))
        return (
            "put the devices back, or give the host the PCI addresses that it"
            f" had; only if the device was replaced on purpose, remove {path}"
        )

    def _read(self) -> Mapping[str, notes.Assignment]:
        return self._notes.read_last(
            "serial numbers of devices are not compared"
        )

    def _write(self, server: str, address: str, numbers: Numbers) -> None:
        self._notes.write_or_retain(
            notes.Assignment(
                address=address,
                reason="a server was given this device",
                when=notes.now(),
                server=server,
                nvme=numbers.get("nvme"),
                dsn=numbers.get("dsn"),
            )
        )


def read_numbers(root: str, address: str) -> Numbers:
    """Return the known serial numbers of a function by kind.

    Only root can read the PCI serial number in configuration space, so
    Nova's privileged daemon reads it.
    """
    host = host_reader.HostReader(source=fs.DiskSource(root))
    try:
        pf = host.target(address, "physfn")
    except (errors.UnreadableError, errors.MalformedError):
        return _read_own(host, root, address)
    index = _vf_index(host, pf, address)
    if not index:
        return {}
    return {
        kind: f"{text} VF {index}"
        for kind, text in _read_own(host, root, pf).items()
    }


def _vf_index(host: host_reader.HostReader, pf: str, address: str) -> str:
    """Return the index of an NVMe controller's VF, empty for other VFs."""
    try:
        if not host.attribute(address, "class").startswith(_NVME_CLASS):
            return ""
        for name in host.names(pf):
            index = name.removeprefix("virtfn")
            if index != name and host.target(pf, name) == address:
                return index
    except (errors.UnreadableError, errors.MalformedError) as error:
        LOG.debug("No serial number of VF %s: %s", address, error)
    return ""


def _read_own(
    host: host_reader.HostReader, root: str, address: str
) -> Numbers:
    number, dsn = privileged.read_serial(root, address)
    if number:
        LOG.debug("No PCI serial number of %s: errno %s", address, number)
    numbers = {"nvme": _read_nvme(host, address), "dsn": dsn}
    return {kind: text for kind, text in numbers.items() if text}


def _read_nvme(host: host_reader.HostReader, address: str) -> str:
    try:
        for name in host.names(address, "nvme"):
            return host.attribute(address, f"nvme/{name}/serial").strip()
    except (errors.UnreadableError, errors.MalformedError):
        pass
    return ""


def _known_numbers(assignment: notes.Assignment) -> Numbers:
    numbers = {"nvme": assignment.nvme or "", "dsn": assignment.dsn or ""}
    return {kind: number for kind, number in numbers.items() if number}


def _is_same(first: Numbers, second: Numbers) -> bool:
    return any(first[kind] == second[kind] for kind in first.keys() & second)


def _describe(numbers: Numbers) -> str:
    labels = {"nvme": "NVMe serial", "dsn": "PCI serial"}
    return ", ".join(
        f"{labels[kind]} {text}" for kind, text in sorted(numbers.items())
    )
