# SPDX-License-Identifier: Apache-2.0
"""Read-back of actions: the state of the host that an action changes."""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping

from nova_accel import errors
from nova_accel.host.execute import privileged, reset_checks
from nova_accel.host.fpga import dfl, xrt
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import attributes, fs
from nova_accel.model import actions, names, pci

_FUNCTIONS = "/sys/bus/pci/devices"
_MDEVS = "/sys/bus/mdev/devices"
# A PF's links to its VFs (drivers/pci/iov.c, VIRTFN_ID_LEN).
_VIRTFN = re.compile(r"virtfn[0-9]+")
# Content of driver_override without an override (pci-sysfs.c).
_NO_OVERRIDE = ("", "(null)")
# Content of current_vgpu_type of a VF without a vGPU.
FREE = "0"
# Names of files of a vGPU.
PARAMS, PLACEMENT = "vgpu_params", "placement_id"

MdevAction = actions.CreateMdev | actions.RemoveMdev
VgpuAction = (
    actions.SetVgpuType
    | actions.ClearVgpuType
    | actions.SetVgpuParams
    | actions.SetVgpuPlacementId
)
GpuAction = (
    actions.CreateInstance
    | actions.DestroyInstance
    | actions.SetMixedSizes
    | actions.SetMigMode
)
CardAction = actions.ProgramRegion | actions.SetPort | actions.SetServices
FunctionAction = (
    actions.BindDriver
    | actions.ResetFunction
    | actions.ResetTogether
    | actions.RunScrub
)
ReadGpus = Callable[[], Mapping[str, gpu_reader.NvmlGpu]]


class Readback:
    """Reader of the state that actions change; it caches nothing.

    The kernel follows the links in a path, as it does for the writes.
    """

    def __init__(self, root: str, read_gpus: ReadGpus) -> None:
        """Read files below ``root``; ``read_gpus`` calls NVML."""
        self._root = root
        self._source = fs.DiskSource(root)
        self._read_gpus = read_gpus

    def is_done(self, action: actions.Action, is_new: bool = False) -> bool:
        """Return whether the effect of an action exists.

        :param is_new: whether the action was just applied. Then more VFs
            than requested are accepted, a forced bitstream counts as
            loaded if the region shows its function, and a scrub is done if
            the function answers.
        """
        match action:
            case actions.CreateMdev() | actions.RemoveMdev():
                return self._is_mdev_done(action)
            case actions.SetVfCount():
                return self._is_count_done(action, is_new)
            case (
                actions.BindDriver()
                | actions.ResetFunction()
                | actions.ResetTogether()
                | actions.RunScrub()
            ):
                return self._is_function_done(action, is_new)
            case (
                actions.CreateInstance()
                | actions.DestroyInstance()
                | actions.SetMixedSizes()
                | actions.SetMigMode()
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

        A scrub is never done before it was applied.
        """
        if isinstance(action, actions.ResetTogether):
            return is_new and all(
                reset_checks.is_answering(self._root, function)
                for function in action.functions
            )
        function = action.function
        if not isinstance(action, actions.BindDriver):
            return is_new and reset_checks.is_answering(self._root, function)
        override = self._attribute(function, "driver_override")
        return self.driver(function) == action.driver and (
            bool(action.driver) or override in _NO_OVERRIDE
        )

    def vgpu_type(self, function: str) -> str:
        """Return a VF's vGPU type, empty if it can't be read."""
        return self.vgpu_file(function, "current_vgpu_type") or ""

    def driver(self, function: str) -> str:
        """Return the driver bound to a function, empty for none."""
        try:
            target = self._source.link(f"{_FUNCTIONS}/{function}/driver")
        except OSError:
            return ""
        return os.path.basename(target or "")

    def vf_count(self, function: str) -> int | None:
        """Return how many VFs a PF has enabled, None if unknown."""
        return attributes.parse_number(
            self._attribute(function, "sriov_numvfs")
        )

    def is_probing(self, function: str) -> bool:
        """Return whether the host's drivers probe new VFs of a PF."""
        return self._attribute(function, "sriov_drivers_autoprobe") != "0"

    def guest_uses(self, function: str) -> Iterator[str]:
        """Yield descriptions of possible uses of a function by guests.

        sysfs does not show whether a process has a VF open, so a VF bound
        to a VFIO driver counts as used.
        """
        parents = self._mdev_parents()
        vfs = self.virtual_functions(function)
        for address in (function, *vfs):
            if address in parents or self.vgpu_type(address) not in ("", FREE):
                yield f"{address} holds a vGPU"
        for vf in vfs:
            driver = self.driver(vf)
            if pci.is_for_guests(driver):
                yield f"{vf} is bound to {driver}"

    def region_function(self, action: actions.ProgramRegion) -> str | None:
        """Return the function of a region; see ``model.Region.function``."""
        is_xrt = action.tool == xrt.TOOL
        read = xrt.read_loaded if is_xrt else dfl.read_loaded
        return read(self._files(), action.card, action.number, action.slot)

    def fme(self, card: str) -> str | None:
        """Return the name of a card's FME device, None without one."""
        return dfl.fme_node(self._files(), card)

    def services(self, function: str) -> str:
        """Return a QAT device's services, empty if unknown."""
        return self._attribute(function, "qat/cfg_services")

    def is_up(self, function: str) -> bool:
        """Return whether a QAT device is up."""
        return self._attribute(function, "qat/state") == "up"

    def gpu(self, address: str) -> gpu_reader.NvmlGpu | None:
        """Return NVML's state of a GPU, None if unknown."""
        return self._read_gpus().get(address)

    def instance_starts(self, gpu: str, kind: str) -> set[int | None] | None:
        """Return the starts of GPU instances of a kind, None if unknown.

        An instance whose start is unknown gives None.
        """
        state = self.gpu(gpu)
        if state is None or "instances" in state.unread:
            return None
        return {
            instance.span.start if instance.span else None
            for instance in state.instances
            if instance.kind == kind
        }

    def _files(self) -> fs.Files:
        return fs.Files(self._source)

    def _is_mdev_done(self, action: MdevAction) -> bool:
        uuid, parent = action.uuid, action.parent
        if isinstance(action, actions.CreateMdev):
            return self.mdev_place(uuid) == (parent, action.type_id)
        # The kernel removes an mdev from the bus, waits for processes that
        # have it open, and removes its directory last.
        places = (_MDEVS, f"/sys/class/mdev_bus/{parent}")
        return not any(self._exists(f"{place}/{uuid}") for place in places)

    def _exists(self, path: str) -> bool:
        """Return whether a path exists; True if it can't be read."""
        try:
            self._source.mode(path)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)
        return True

    def mdev_place(self, uuid: str) -> tuple[str, str] | None:
        """Return an mdev's parent and type, None if it does not exist."""
        path = f"{_MDEVS}/{uuid}"
        try:
            device = self._source.link(path) or ""
            kind = self._source.link(f"{path}/mdev_type") or ""
        except OSError:
            return None
        parent = os.path.basename(os.path.dirname(device))
        return parent, os.path.basename(kind)

    def _mdev_parents(self) -> frozenset[str]:
        try:
            targets = [
                self._source.link(f"{_MDEVS}/{name}") or ""
                for name in self._source.names(_MDEVS)
            ]
        except OSError:
            return frozenset()
        return frozenset(
            os.path.basename(os.path.dirname(target)) for target in targets
        )

    def _is_vgpu_done(self, action: VgpuAction) -> bool:
        match action:
            case actions.SetVgpuType(function=function, type_id=type_id):
                return self.vgpu_type(function) == type_id
            case actions.ClearVgpuType(function=function):
                return self._is_free(function)
            case actions.SetVgpuParams(target=target, params=params):
                present = self.vgpu_file(target, PARAMS)
                is_equal = _parameters(present or "") == _parameters(params)
                return is_equal and (present is not None or not params)
            case actions.SetVgpuPlacementId(function=function, start=start):
                return self.vgpu_file(function, PLACEMENT) == str(start)

    def _is_free(self, function: str) -> bool:
        type_id = self.vgpu_type(function)
        # An unreadable VF may have a vGPU; a removed VF has none.
        return type_id == FREE or (
            not type_id and self._files().is_gone(f"{_FUNCTIONS}/{function}")
        )

    def vgpu_file(self, target: str, name: str) -> str | None:
        """Return a file of a VF's or an mdev's vGPU, None if unreadable.

        A file that only root may read is read by the privileged daemon.
        """
        top = _FUNCTIONS if ":" in target else _MDEVS
        text = self._files().read_text(f"{top}/{target}/nvidia/{name}")
        number = 0
        if text in (errno.EACCES, errno.EPERM):
            number, text = privileged.read_vgpu(self._root, target, name)
        return None if number or isinstance(text, int) else text.strip()

    def _is_count_done(self, action: actions.SetVfCount, is_new: bool) -> bool:
        enabled = self.vf_count(action.function)
        if enabled is None:
            return False
        is_all = bool(action.tool) and bool(enabled) == bool(action.count)
        # Intel QAT enables all of its VFs, whatever the number.
        is_enough = 0 < action.count <= enabled and (
            is_new or not action.before
        )
        if not (enabled == action.count or is_all or is_enough):
            return False
        return len(self.virtual_functions(action.function)) == enabled

    def virtual_functions(self, function: str) -> tuple[str, ...]:
        """Return the VFs of a PF whose physfn link exists."""
        files = self._files()
        place = f"{_FUNCTIONS}/{function}"
        try:
            links = [n for n in files.names(place) if _VIRTFN.fullmatch(n)]
        except errors.UnreadableError:
            return ()
        vfs = []
        for name in links:
            try:
                if files.link(f"{place}/{name}/physfn") == function:
                    vfs.append(files.link(f"{place}/{name}"))
            except errors.UnreadableError:
                continue  # the kernel creates the link after the directory
        return tuple(vfs)

    def _attribute(self, function: str, name: str) -> str:
        """Return an attribute of a function, empty if unreadable."""
        text = self._files().read_text(f"{_FUNCTIONS}/{function}/{name}")
        return "" if isinstance(text, int) else text.strip()

    def _is_card_done(self, action: CardAction, is_new: bool) -> bool:
        match action:
            case actions.ProgramRegion():
                loaded = names.normalize_fpga_id(action.bitstream.function)
                is_trusted = is_new or not action.is_forced
                return is_trusted and self.region_function(action) == loaded
            case actions.SetPort():
                return self._is_port_done(action)
            case actions.SetServices(function=function):
                present = _split_services(self.services(function))
                is_equal = present == _split_services(action.services)
                return is_equal and self.is_up(function)

    def _is_port_done(self, action: actions.SetPort) -> bool:
        """Return whether a port is assigned to its PF, or is released."""
        layout = dfl.read(self._files(), action.card)
        if not action.is_released:
            return layout.port(action.number) is not None
        # A port whose number is unknown (None) may be this port.
        numbers = {port.number for port in layout.ports}
        return layout.node is not None and not numbers & {action.number, None}

    def _is_gpu_done(self, action: GpuAction) -> bool:
        match action:
            case actions.SetMixedSizes(gpu=gpu, is_mixed=is_mixed):
                state = self.gpu(gpu)
                return state is not None and state.is_mixed is is_mixed
            case actions.SetMigMode(gpu=gpu, is_mig=is_mig):
                state = self.gpu(gpu)
                return state is not None and state.is_mig is is_mig
            case actions.CreateInstance(gpu=gpu, kind=kind, start=start):
                return start in (self.instance_starts(gpu, kind) or ())
            case actions.DestroyInstance(gpu=gpu, kind=kind, start=slice_):
                starts = self.instance_starts(gpu, kind)
                if starts is None or slice_ is None:
                    return starts == set()
                # An instance whose start is unknown may be this instance.
                return not starts & {slice_, None}


def _split_services(services: str) -> frozenset[str]:
    """Return the services of a QAT device; their order has no meaning."""
    return frozenset(services.split(";"))


def _parameters(text: str) -> frozenset[tuple[str, str]]:
    """Return key and value of each parameter, without spaces."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return frozenset((key.strip(), value.strip()) for key, _, value in pairs)
