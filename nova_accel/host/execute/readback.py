# SPDX-License-Identifier: Apache-2.0
"""Read-back of actions: is the state that was asked for there?"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping

from nova_accel import errors
from nova_accel.host.execute import privileged, reset_checks
from nova_accel.host.fpga import dfl, xrt
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import fs
from nova_accel.model import actions, names

_FUNCTIONS = "/sys/bus/pci/devices"
_MDEVS = "/sys/bus/mdev/devices"
# A PF's links to its VFs (drivers/pci/iov.c, VIRTFN_ID_LEN).
_VIRTFN = re.compile(r"virtfn[0-9]+")
# What driver_override reads while nothing is set (pci-sysfs.c).
_NO_OVERRIDE = ("", "(null)")
# What current_vgpu_type reads while the VF is free.
FREE = "0"
# Files of a vGPU that have a name in two places.
PARAMS, PLACEMENT = "vgpu_params", "placement_id"

MdevAction = actions.CreateMdev | actions.RemoveMdev
VgpuAction = (
    actions.SetVgpuType
    | actions.ClearVgpuType
    | actions.SetVgpuParams
    | actions.SetPlacement
)
GpuAction = (
    actions.CreateInstance | actions.DestroyInstance | actions.SetMixedSizes
)
CardAction = actions.ProgramRegion | actions.SetPort | actions.SetServices
FunctionAction = actions.BindDriver | actions.ResetFunction | actions.RunScrub
ReadGpus = Callable[[], Mapping[str, gpu_reader.NvmlGpu]]


class Readback:
    """Looks at the host below a root, and at what NVML says."""

    def __init__(self, root: str, read_gpus: ReadGpus) -> None:
        """Look below ``root``; ``read_gpus`` asks NVML."""
        self._root = root
        self._read_gpus = read_gpus

    def is_done(self, action: actions.Action, is_new: bool = False) -> bool:
        """Return whether what an action wants is so.

        :param is_new: whether it was carried out just now: a driver may
            make more VFs than it was asked for, and a region that shows
            the function may not be trusted.
        """
        match action:
            case actions.CreateMdev() | actions.RemoveMdev():
                return self._is_mdev_done(action)
            case actions.SetVfCount():
                return self._is_count_done(action, is_new)
            case (
                actions.BindDriver()
                | actions.ResetFunction()
                | actions.RunScrub()
            ):
                return self._is_function_done(action, is_new)
            case (
                actions.CreateInstance()
                | actions.DestroyInstance()
                | actions.SetMixedSizes()
            ):
                return self._is_gpu_done(action)
            case (
                actions.ProgramRegion()
                | actions.SetPort()
                | actions.SetServices()
            ):
                return self._is_card_done(action, is_new)
            case _:
                return self._is_vgpu_done(action)

    def _is_function_done(self, action: FunctionAction, is_new: bool) -> bool:
        """Return whether a function has its driver, or answers.

        What scrubs one is never done before it was done.
        """
        function = action.function
        if not isinstance(action, actions.BindDriver):
            return is_new and reset_checks.answers(self._root, function)
        override = self._function(function, "driver_override")
        return self.driver(function) == action.driver and (
            bool(action.driver) or override in _NO_OVERRIDE
        )

    def vgpu_type(self, function: str) -> str:
        """Return a VF's vGPU type, empty where it can't be read."""
        return self.vgpu(function, "current_vgpu_type") or ""

    def driver(self, function: str) -> str:
        """Return the driver bound to a function, empty for none."""
        try:
            return self._files().link(f"{_FUNCTIONS}/{function}/driver")
        except errors.UnreadableError:
            return ""

    def vf_count(self, function: str) -> int | None:
        """Return how many VFs a PF has enabled, None if it doesn't say."""
        text = self._function(function, "sriov_numvfs")
        return int(text) if text.isdecimal() else None

    def is_probing(self, function: str) -> bool:
        """Return whether the host's drivers are offered a PF's new VFs."""
        return self._function(function, "sriov_drivers_autoprobe") != "0"

    def held(self, function: str) -> Iterator[str]:
        """Yield what a guest may hold of a function, in words.

        Who has a VF open on a VFIO driver, sysfs does not tell.
        """
        parents = self._mdev_parents()
        virtual = self.virtual_functions(function)
        for one in (function, *virtual):
            if one in parents or self.vgpu_type(one) not in ("", FREE):
                yield f"{one} holds a vGPU"
        for one in virtual:
            driver = self.driver(one)
            if privileged.is_for_guests(driver):
                yield f"{one} is bound to {driver}"

    def function(self, action: actions.ProgramRegion) -> str | None:
        """Return what a region holds, as ``model.Region.function`` says."""
        read = xrt.loaded if action.tool == xrt.TOOL else dfl.loaded
        return read(self._files(), action.card, action.number, action.slot)

    def fme(self, card: str) -> str | None:
        """Return the name of a card's character device, None without."""
        return dfl.node(self._files(), card)

    def services(self, function: str) -> str:
        """Return a QAT device's services, empty if it doesn't say."""
        return self._function(function, "qat/cfg_services")

    def is_up(self, function: str) -> bool:
        """Return whether a QAT device is up."""
        return self._function(function, "qat/state") == "up"

    def gpu(self, address: str) -> gpu_reader.NvmlGpu | None:
        """Return what NVML says of a GPU, None for nothing."""
        return self._read_gpus().get(address)

    def starts(self, gpu: str, kind: str) -> set[int | None] | None:
        """Return where GPU instances of a kind begin.

        None for one of them is an unknown place, and for the whole that
        NVML does not tell.
        """
        facts = self.gpu(gpu)
        if facts is None or "instances" in facts.unread:
            return None
        return {
            one.span.start if one.span else None
            for one in facts.instances
            if one.kind == kind
        }

    def _files(self) -> fs.Files:
        return fs.Files(fs.DiskSource(self._root))

    def _is_mdev_done(self, action: MdevAction) -> bool:
        uuid, parent = action.uuid, action.parent
        if isinstance(action, actions.CreateMdev):
            return self.mdev_place(uuid) == (parent, action.type_id)
        # The bus forgets an mdev before the removal waits for whoever
        # holds it; its directory goes last.
        places = (_MDEVS, f"/sys/class/mdev_bus/{parent}")
        return not any(
            os.path.lexists(f"{self._below(place)}/{uuid}") for place in places
        )

    def mdev_place(self, uuid: str) -> tuple[str, str] | None:
        """Return an mdev's parent and type, None while it has none."""
        path = f"{self._below(_MDEVS)}/{uuid}"
        try:
            device = os.readlink(path)
            kind = os.readlink(f"{path}/mdev_type")
        except OSError:
            return None
        parent = os.path.basename(os.path.dirname(device))
        return parent, os.path.basename(kind)

    def _mdev_parents(self) -> frozenset[str]:
        try:
            with os.scandir(self._below(_MDEVS)) as entries:
                targets = [os.readlink(entry.path) for entry in entries]
        except OSError:
            return frozenset()
        return frozenset(
            os.path.basename(os.path.dirname(target)) for target in targets
        )

    def _below(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _is_vgpu_done(self, action: VgpuAction) -> bool:
        match action:
            case actions.SetVgpuType(function=function, type_id=wanted):
                return self.vgpu_type(function) == wanted
            case actions.ClearVgpuType(function=function):
                return self._is_free(function)
            case actions.SetVgpuParams(target=target, params=params):
                found = self.vgpu(target, PARAMS)
                return _parameters(found or "") == _parameters(params) and (
                    found is not None or not params
                )
            case actions.SetPlacement(function=function, start=start):
                return self.vgpu(function, PLACEMENT) == str(start)

    def _is_free(self, function: str) -> bool:
        found = self.vgpu_type(function)
        # A VF that is gone holds nothing; one that can't be read may.
        return found == FREE or (
            not found and self._files().is_gone(f"{_FUNCTIONS}/{function}")
        )

    def vgpu(self, target: str, name: str) -> str | None:
        """Return a file of a VF's or an mdev's vGPU, None without one."""
        place = (
            f"{_FUNCTIONS}/{target}"
            if ":" in target
            else (f"{_MDEVS}/{target}")
        )
        try:
            return self._files().text(f"{place}/nvidia/{name}").strip()
        except errors.UnreadableError as error:
            if error.number not in (errno.EACCES, errno.EPERM):
                return None
        number, text = privileged.read_vgpu(self._root, target, name)
        return None if number else text.strip()

    def _is_count_done(self, action: actions.SetVfCount, is_new: bool) -> bool:
        found = self.vf_count(action.function)
        if found is None:
            return False
        is_all = bool(action.tool) and bool(found) == bool(action.count)
        # Intel QAT makes all of its VFs, whatever the number.
        is_enough = 0 < action.count <= found and (is_new or not action.before)
        if not (found == action.count or is_all or is_enough):
            return False
        return len(self.virtual_functions(action.function)) == found

    def virtual_functions(self, function: str) -> tuple[str, ...]:
        """Return a PF's VFs, as soon as each leads back to it."""
        files = self._files()
        place = f"{_FUNCTIONS}/{function}"
        try:
            links = [n for n in files.names(place) if _VIRTFN.fullmatch(n)]
        except errors.UnreadableError:
            return ()
        found = []
        for name in links:
            try:
                if files.link(f"{place}/{name}/physfn") == function:
                    found.append(files.link(f"{place}/{name}"))
            except errors.UnreadableError:
                continue  # its link comes after its directory
        return tuple(found)

    def _function(self, function: str, name: str) -> str:
        """Return a file of a function, empty where it can't be read."""
        try:
            path = f"{_FUNCTIONS}/{function}/{name}"
            return self._files().text(path).strip()
        except errors.UnreadableError:
            return ""

    def _is_card_done(self, action: CardAction, is_new: bool) -> bool:
        match action:
            case actions.ProgramRegion():
                wanted = names.fpga_id(action.bitstream.function)
                is_trusted = is_new or not action.is_forced
                return is_trusted and self.function(action) == wanted
            case actions.SetPort():
                return self._is_port_done(action)
            case actions.SetServices(function=function):
                found = _words(self.services(function))
                return found == _words(action.services) and self.is_up(
                    function
                )

    def _is_port_done(self, action: actions.SetPort) -> bool:
        """Return whether a port is behind its PF, or surely not."""
        shown = dfl.read(self._files(), action.card)
        if not action.is_released:
            return shown.port(action.number) is not None
        # One that can't tell its number may be this one.
        ports = {port.number for port in shown.ports}
        return shown.node is not None and not ports & {action.number, None}

    def _is_gpu_done(self, action: GpuAction) -> bool:
        match action:
            case actions.SetMixedSizes(gpu=gpu, is_mixed=is_mixed):
                facts = self.gpu(gpu)
                return facts is not None and facts.is_mixed is is_mixed
            case actions.CreateInstance(gpu=gpu, kind=kind, start=start):
                return start in (self.starts(gpu, kind) or ())
            case actions.DestroyInstance(gpu=gpu, kind=kind, start=at):
                found = self.starts(gpu, kind)
                if found is None or at is None:
                    return found == set()
                # One whose place isn't known may be this one.
                return not found & {at, None}


def _words(services: str) -> frozenset[str]:
    """Return the services of a QAT device, whose order says nothing."""
    return frozenset(services.split(";"))


def _parameters(text: str) -> frozenset[tuple[str, str]]:
    """Return parameters without their order and spaces."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return frozenset((key.strip(), value.strip()) for key, _, value in pairs)
