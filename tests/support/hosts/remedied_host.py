# SPDX-License-Identifier: Apache-2.0
"""Hosts on which an operator has done what a report says."""

import errno
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import errors
from nova_accel.catalog import loader, pci_ids
from nova_accel.config import policy, remedy
from nova_accel.discovery import plugin
from nova_accel.discovery.capture import RecordedLink
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import actions, pci
from tests.hosts import build

FUNCTIONS = "/sys/bus/pci/devices"
NOVA_CONF = "/etc/nova/nova.conf"
# The id of a vGPU type, which differs between drivers.
_TYPE_ID = 4711
_FIRST_GROUP = 10000
_TOTAL_VFS = 16

Record = str | RecordedLink | None


class ChangedFiles:
    """Files of a host with changes; None removes a path and all below."""

    def __init__(
        self, source: fs.FileSource, changes: Mapping[str, Record]
    ) -> None:
        self._source = source
        self._changes = dict(changes)

    def link(self, path: str) -> str | None:
        record = self._find(path)
        if isinstance(record, RecordedLink):
            return str(record)
        return None if self._is_new(path) else self._source.link(path)

    def content(self, path: str) -> bytes:
        record = self._find(path)
        if isinstance(record, RecordedLink):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if record is not None:
            return record.encode()
        return self._source.content(path)

    def names(self, path: str) -> list[str]:
        self._find(path)
        prefix = f"{path}/"
        below = {
            changed.removeprefix(prefix).split("/")[0]: record
            for changed, record in self._changes.items()
            if changed.startswith(prefix)
        }
        removed = {
            changed.removeprefix(prefix)
            for changed, record in self._changes.items()
            if changed.startswith(prefix) and record is None
        }
        try:
            present = set(self._source.names(path))
        except OSError:
            if not below:
                raise
            present = set()
        return sorted((present | below.keys()) - removed)

    def mode(self, path: str) -> int:
        return self._source.mode(path)

    def _find(self, path: str) -> Record:
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            above = "/".join(parts[:end])
            if above in self._changes and self._changes[above] is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._changes.get(path)

    def _is_new(self, path: str) -> bool:
        """Return whether only a change has a path."""
        prefix = f"{path}/"
        is_above = any(name.startswith(prefix) for name in self._changes)
        if path not in self._changes and not is_above:
            return False
        try:
            return self._source.link(path) is None
        except OSError:
            return True


class RemediedHost:
    """A host before and after corrections."""

    def __init__(
        self,
        source: fs.FileSource,
        drivers: Mapping[str, plugin.Driver],
    ) -> None:
        self._source = source
        self._drivers = drivers
        self._changes: dict[str, Record] = {}
        self._lines: list[str] = []
        self._groups = itertools.count(_FIRST_GROUP)

    @property
    def reader(self) -> host_reader.HostReader:
        """Return a new reader of the host as it is now."""
        changes = dict(self._changes)
        if self._lines:
            lines = "".join(f"device_spec = {line}\n" for line in self._lines)
            before = read_text(self._source, NOVA_CONF)
            changes[NOVA_CONF] = f"[nova_accel]\n{lines}{before}"
        source = ChangedFiles(self._source, changes)
        return host_reader.HostReader(source=source)

    @property
    def rules(self) -> policy.DeviceRules:
        return policy.parse_rules(self._lines)

    def apply(self, steps: Iterable[remedy.Remedy]) -> None:
        """Do what the corrections say."""
        for step in steps:
            self._apply(step)

    @functools.singledispatchmethod
    def _apply(self, step: remedy.Remedy) -> None:
        raise AssertionError(f"{step!r} has no effect on files")

    @_apply.register
    def _(self, step: remedy.SpecLine) -> None:
        self._lines.insert(0, json.dumps(step.fields))
        if step.num_vfs is not None:
            reader = self.reader
            for driver in self._drivers.values():
                for action in driver.plan_arrange(reader, self.rules):
                    self._execute(action)

    @_apply.register
    def _(self, step: remedy.BindFunction) -> None:
        self._bind(step.function, step.driver)

    @_apply.register
    def _(self, step: remedy.BindVfs) -> None:
        reader = self.reader
        card = reader.function(step.function)
        assert card is not None
        vfs = [reader.function(str(vf)) for vf in card.virtual_functions]
        bound = [
            str(vf.address)
            for vf in vfs
            if vf and (vf.driver or "") == step.before
        ]
        assert bound, step
        for address in bound:
            self._bind(address, step.driver)

    @_apply.register
    def _(self, step: remedy.WriteAttribute) -> None:
        reader = self.reader
        card = reader.function(step.function)
        assert card is not None
        place = self._place(step.function)
        if step.name == "sriov_numvfs":
            self._remove_vfs(card)
        value = "flr bus" if step.value == "default" else step.value
        self._changes[f"{place}/{step.name}"] = f"{value}\n"

    @_apply.register
    def _(self, step: remedy.MoveCard) -> None:
        """Take the card's functions out of groups with other functions."""
        groups: dict[int | None, list[pci.PciFunction]] = {}
        for function in self._list_functions(step.function):
            groups.setdefault(function.iommu_group, []).append(function)
        for functions in groups.values():
            self._set_group(functions)

    @_apply.register
    def _(self, step: remedy.IsolateFunctions) -> None:
        for function in self._list_functions(step.function):
            self._set_group([function])

    @_apply.register
    def _(self, step: remedy.EnableSriov) -> None:
        """Show the capability; the kernel makes both files for it."""
        place = self._place(step.function)
        self._changes[f"{place}/sriov_totalvfs"] = f"{_TOTAL_VFS}\n"
        self._changes[f"{place}/sriov_numvfs"] = "0\n"

    @functools.singledispatchmethod
    def _execute(self, action: actions.Action) -> None:
        """Do what nova-compute does at its start, where files show it."""

    @_execute.register
    def _(self, action: actions.SetVfCount) -> None:
        if action.count:
            self._enable_vfs(action)
            return
        card = self.reader.function(action.function)
        assert card is not None
        self._remove_vfs(card)
        self._changes[f"{self._place(action.function)}/sriov_numvfs"] = "0\n"

    @_execute.register
    def _(self, action: actions.SetPort) -> None:
        """Make or remove the port of an Intel FPGA card below its PF."""
        files = self.reader.files
        top = f"{self._place(action.card)}/fpga_region"
        (region,) = files.names(top)
        if not action.is_released:
            port = f"{top}/{region}/dfl-port.{action.number}"
            self._changes |= {
                f"{port}/id": f"{action.number}\n",
                f"{port}/afu_id": f"{'5' * 32}\n",
            }
            return
        for name in files.names(f"{top}/{region}"):
            port = f"{top}/{region}/{name}"
            is_port = name.startswith("dfl-port.")
            if is_port and int(files.text(f"{port}/id")) == action.number:
                self._changes[port] = None

    def _remove_vfs(self, card: pci.PciFunction) -> None:
        place = self._place(str(card.address))
        for number, vf in enumerate(card.virtual_functions):
            self._changes[f"{FUNCTIONS}/{vf}"] = None
            self._changes[f"{place}/virtfn{number}"] = None

    def _list_functions(self, address: str) -> list[pci.PciFunction]:
        """Return the functions of a card, its VFs included."""
        slot = f"{address.rpartition('.')[0]}."
        return [
            function
            for function in self.reader.all_functions()
            if str(function.physfn or function.address).startswith(slot)
        ]

    def _set_group(self, functions: Iterable[pci.PciFunction]) -> None:
        """Put functions into a new IOMMU group, unless they are in none."""
        group = f"/sys/kernel/iommu_groups/{next(self._groups)}"
        for function in functions:
            if function.iommu_group is None:
                continue
            address = str(function.address)
            place = self._place(address)
            before = f"/sys/kernel/iommu_groups/{function.iommu_group}"
            self._changes |= {
                f"{before}/devices/{address}": None,
                f"{place}/iommu_group": RecordedLink(group),
                f"{group}/devices/{address}": RecordedLink(place),
            }

    def _place(self, address: str) -> str:
        return self.reader.files.resolve(f"{FUNCTIONS}/{address}")

    def _bind(self, address: str, driver: str) -> None:
        place = self._place(address)
        self._changes[f"{place}/driver"] = RecordedLink(
            f"/sys/bus/pci/drivers/{driver}"
        )
        function = self.reader.function(address)
        assert function is not None
        if driver == "nvidia" and function.physfn:
            self._add_vgpu_files(place, function)

    def _add_vgpu_files(self, place: str, function: pci.PciFunction) -> None:
        """Make the files that NVIDIA's vGPU manager makes on a VF."""
        name = _find_type(function)
        self._changes |= {
            f"{place}/nvidia/current_vgpu_type": "0\n",
            f"{place}/nvidia/creatable_vgpu_types": (
                f"ID    : vGPU Name\n{_TYPE_ID}  : NVIDIA {name}\n"
            ),
        }

    def _enable_vfs(self, action: actions.SetVfCount) -> None:
        card = self.reader.function(action.function)
        assert card is not None
        place = self._place(action.function)
        self._changes[f"{place}/sriov_numvfs"] = f"{action.count}\n"
        for number in range(action.count):
            address = build.vf_address(action.function, number + 1)
            new = f"{place.rpartition('/')[0]}/{address}"
            family = pci_ids.find_qat(card)
            product = family.vf if family else card.product
            self._changes |= {
                f"{FUNCTIONS}/{address}": RecordedLink(new),
                f"{place}/virtfn{number}": RecordedLink(new),
                f"{new}/vendor": f"0x{card.vendor}\n",
                f"{new}/device": f"0x{product}\n",
                f"{new}/class": f"0x{card.class_code:06x}\n",
                f"{new}/physfn": RecordedLink(place),
                # Each VF can be reset (PCI Express, 9.2.2.2).
                f"{new}/reset": "",
                f"{new}/reset_method": "flr\n",
            }
            if card.iommu_group is not None:
                group = f"/sys/kernel/iommu_groups/{next(self._groups)}"
                self._changes |= {
                    f"{new}/iommu_group": RecordedLink(group),
                    f"{group}/devices/{address}": RecordedLink(new),
                }
            if action.tool:
                self._bind(address, "nvidia")


def _find_type(function: pci.PciFunction) -> str:
    """Return the name of a vGPU type of a card."""
    gpu = loader.load().of_card(
        (),
        function.vendor,
        function.product,
        function.subsystem_vendor,
        function.subsystem_product,
    )
    names: Iterator[str] = iter(())
    if gpu is not None:
        names = (t.name for t in loader.load().profiles_of(gpu.key))
    return next(names, "X1-1Q")


def read_text(source: fs.FileSource, path: str) -> str:
    """Return the text of a file, empty without one."""
    try:
        return fs.Files(source).text(path)
    except errors.UnreadableError:
        return ""


def try_read(source: fs.FileSource, path: str) -> bool:
    """Return whether a path exists."""
    try:
        fs.Files(source).names(path)
    except errors.UnreadableError:
        return False
    return True
