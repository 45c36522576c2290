# SPDX-License-Identifier: Apache-2.0
"""File operations of one uevent, spawn and reading on a simulated kernel."""

import collections
import contextlib
import os
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

from nova_accel import model
from nova_accel.model import flavors, names
from tests.lab import fakehost
from tests.support.hosts import simulated
from virt_hooks.spawn import host_access

CARD = "0000:10:00.0"
# What reads a directory, a link, a file or the status of one.
_READS = ("open", "readlink", "listdir", "scandir", "stat", "lstat")
TECHNOLOGIES = {"vendor-vfio": "vfio", "mdev": "mdev"}


def describe(technology: str, cards: int, vfs: int) -> fakehost.HostSpec:
    """Return a host of L40S, of which the first has all of the VFs.

    The other cards have one VF each, so that a host of many starts soon.
    """
    return fakehost.HostSpec(
        cards=tuple(
            fakehost.NvidiaGpu(
                address=f"0000:{0x10 + number:02x}:00.0",
                model="L40S",
                interface=TECHNOLOGIES[technology],
                enabled_vfs=1 if number else vfs,
                total_vfs=vfs,
            )
            for number in range(cards)
        )
    )


class FileOperations(collections.Counter[str]):
    """Operations on the files of a host, by the function of ``os``.

    ``write`` counts the files that are opened for writing.
    """

    @property
    def reads(self) -> int:
        return self.total() - self["write"]


@contextlib.contextmanager
def count_operations(root: pathlib.Path) -> Iterator[FileOperations]:
    """Count the operations on files below a directory meanwhile."""
    operations, top = FileOperations(), str(root)
    with contextlib.ExitStack() as stack:
        for name in _READS:
            call = getattr(os, name)

            def count(
                path: Any = ".", *rest: Any, _call: Any = call, **options: Any
            ) -> Any:
                if isinstance(path, str | os.PathLike) and os.fspath(
                    path
                ).startswith(top):
                    operations[_get_kind(_call, rest)] += 1
                return _call(path, *rest, **options)

            stack.enter_context(mock.patch.object(os, name, count))
        yield operations


def _get_kind(call: Any, arguments: tuple[Any, ...]) -> str:
    kind: str = call.__name__
    is_write = kind == "open" and arguments[0] & os.O_ACCMODE
    return "write" if is_write else kind


class MeasuredHost:
    """A nova-compute that has just read a host."""

    def __init__(self, kernel: fakehost.Controller) -> None:
        self._kernel = kernel
        access = host_access.HostAccess()
        access.uevents.set_open(True)
        self.life = simulated.started(kernel, access=access)
        self._slots: dict[str, model.Slot] = {}

    @property
    def card(self) -> model.Device:
        """Return the card as last read."""
        card = self.life.host.state.device(CARD)
        assert card is not None
        return card

    def list_available(self) -> list[model.Profile]:
        """Return the profiles of the card that a server can have."""
        return [p for p in self.card.profiles if p.available]

    def count_descriptions(self) -> collections.Counter[str]:
        """Return the calls of ``describe`` from now on, by driver."""
        calls = collections.Counter[str]()
        for name, driver in self.life.drivers.items():

            def describe(
                *arguments: Any,
                _name: str = name,
                _call: Any = driver.describe,
            ) -> Any:
                calls[_name] += 1
                return _call(*arguments)

            driver.describe = describe  # type: ignore[assignment]
        return calls

    def release_all(self) -> None:
        """Remove the partitions of all servers."""
        for consumer, slot in self._slots.items():
            self.life.release(consumer, (slot,), simulated.stopped)
        self._slots.clear()

    def spawn(self, number: int = 0) -> FileOperations:
        """Make the partition of a server, on the last VF of the card.

        :param number: of the profile among those that a server can have.
        """
        # The uuid of an mdev is that of its server's slot.
        consumer = str(uuid.UUID(int=len(self._slots) + 1))
        available = self.list_available()
        group = flavors.RequestGroup(
            suffix="_G",
            resources={names.GPU_CLASS: 1},
            required=frozenset({available[number % len(available)].trait}),
        )
        self._slots[consumer] = slot = model.Slot(
            provider=names.provider_uuid(simulated.ROOT.uuid, CARD),
            resource_class=names.GPU_CLASS,
            identifier=self._free_vfs()[-1],
        )
        with count_operations(self._kernel.root) as operations:
            self.life.ensure(consumer, (group,), (slot,))
        return operations

    def handle_uevent(self) -> FileOperations:
        """Read the host after another program has made a partition."""
        vf = self._free_vfs()[0]
        function = self._kernel.root / "sys/bus/pci/devices" / vf
        type_id = self.card.profiles[0].handles[vf]
        if self.card.technology == "mdev":
            create = function / "mdev_supported_types" / type_id / "create"
            create.write_text(str(uuid.uuid4()))
        else:
            (function / "nvidia/current_vgpu_type").write_text(type_id)
        self.life.uevents.add(vf)
        before = len(self.card.partitions)
        with count_operations(self._kernel.root) as operations:
            self.life.host.refresh_changed()
        assert len(self.card.partitions) == before + 1
        return operations

    def pass_unchanged(self) -> FileOperations:
        """Make a pass over the host after which it is as before."""
        self.life.host.refresh_changed()
        state = self.life.host.state
        with count_operations(self._kernel.root) as operations:
            self.life.host.refresh_changed()
        assert self.life.host.state is state
        return operations

    def read_card(self) -> FileOperations:
        """Read all of the card again."""
        with count_operations(self._kernel.root) as operations:
            self.life.host.refresh_cards([CARD])
        return operations

    def read_host(self) -> FileOperations:
        """Read all of the host again."""
        with count_operations(self._kernel.root) as operations:
            self.life.host.refresh()
        return operations

    def _free_vfs(self) -> list[str]:
        used = {partition.parent for partition in self.card.partitions}
        used |= {slot.identifier for slot in self._slots.values()}
        return [slot for slot in self.card.slots if slot not in used]
