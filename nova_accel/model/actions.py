# SPDX-License-Identifier: Apache-2.0
"""Changes of a host, as immutable values.

Actions are declarative and idempotent. ``undo()`` returns the reverse
action, or None without one; ``str()`` is the text for the log.
"""

import dataclasses
import re

from nova_accel import model
from nova_accel.model import names

# Limit of the option program_timeout, in seconds: one hour.
MAX_PROGRAM_S = 3600
# Absolute path of a command, of plain names and without "." and "..".
_COMMAND = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[0-9A-Za-z._+-]+)+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateMdev:
    """Create a mediated device."""

    parent: str
    type_id: str
    uuid: str

    def undo(self) -> "RemoveMdev":
        return RemoveMdev(
            parent=self.parent, type_id=self.type_id, uuid=self.uuid
        )

    def __str__(self) -> str:
        return f"create mdev {self.uuid} ({self.type_id}) on {self.parent}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMdev:
    """Remove a mediated device."""

    parent: str
    type_id: str
    uuid: str

    def undo(self) -> CreateMdev:
        return CreateMdev(
            parent=self.parent, type_id=self.type_id, uuid=self.uuid
        )

    def __str__(self) -> str:
        return f"remove mdev {self.uuid} ({self.type_id}) from {self.parent}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetVgpuType:
    """Set the vGPU type of a VF (NVIDIA's vendor-specific VFIO).

    ``type_id`` is the decimal number in ``current_vgpu_type``.
    """

    function: str
    type_id: str

    def undo(self) -> "ClearVgpuType":
        return ClearVgpuType(function=self.function, type_id=self.type_id)

    def __str__(self) -> str:
        return f"set vGPU type {self.type_id} on {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClearVgpuType:
    """Clear the vGPU type of a VF."""

    function: str
    type_id: str

    def undo(self) -> SetVgpuType:
        return SetVgpuType(function=self.function, type_id=self.type_id)

    def __str__(self) -> str:
        return f"clear vGPU type {self.type_id} of {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetVgpuParams:
    """Set the parameters of a vGPU, ``key=value,key=value``.

    ``target`` is an mdev's UUID or a VF's address. ``before`` are the
    present parameters; empty ``params`` clear them.
    """

    target: str
    params: str
    before: str = ""

    def undo(self) -> "SetVgpuParams":
        return SetVgpuParams(
            target=self.target, params=self.before, before=self.params
        )

    def __str__(self) -> str:
        return f"set vgpu_params of {self.target} to {self.params!r}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetVgpuPlacementId:
    """Set the placement id of a vGPU that is not open.

    There is no undo: removing the vGPU frees the placement.
    """

    function: str
    start: int

    def undo(self) -> None:
        return None

    def __str__(self) -> str:
        return f"place the vGPU of {self.function} at {self.start}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateInstance:
    """Create a GPU instance and the compute instance that fills it.

    ``gpu`` is the PF's address, ``kind`` NVIDIA's profile (``1g.5gb``) and
    ``start`` the memory slice at which it begins.
    """

    gpu: str
    kind: str
    start: int

    def undo(self) -> "DestroyInstance":
        return DestroyInstance(gpu=self.gpu, kind=self.kind, start=self.start)

    def __str__(self) -> str:
        return f"create GPU instance {self.kind} at {self.start} of {self.gpu}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DestroyInstance:
    """Destroy a GPU instance that contains no vGPU.

    With ``start`` None, destroy each empty instance of the kind; others
    remain, and that is not a failure.
    """

    gpu: str
    kind: str
    start: int | None = None

    def undo(self) -> CreateInstance | None:
        if self.start is None:
            return None
        return CreateInstance(gpu=self.gpu, kind=self.kind, start=self.start)

    def __str__(self) -> str:
        place = "that is empty" if self.start is None else f"at {self.start}"
        return f"destroy GPU instance {self.kind} {place} of {self.gpu}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetVfCount:
    """Enable VFs on a PF; 0 disables them.

    The kernel refuses another count while VFs are enabled, so disable them
    first. ``tool`` is set where only the vendor's tool can do it
    (``sriov-manage`` of NVIDIA's host driver). ``is_probed`` is True where
    the host's drivers may bind to the VFs (sriov_drivers_autoprobe).
    """

    function: str
    count: int
    before: int = 0
    tool: str = ""
    is_probed: bool = True

    def undo(self) -> "SetVfCount":
        return dataclasses.replace(self, count=self.before, before=self.count)

    def __str__(self) -> str:
        return f"set {self.count} virtual functions on {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BindDriver:
    """Bind a function to a driver, empty for none.

    ``before`` is its present driver. The kernel selects the driver by
    ``driver_override``.
    """

    function: str
    driver: str
    before: str = ""

    def undo(self) -> "BindDriver":
        return BindDriver(
            function=self.function, driver=self.before, before=self.driver
        )

    def __str__(self) -> str:
        return f"bind {self.function} to {self.driver or 'no driver'}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetMixedSizes:
    """Set a GPU's mixed-size mode; only possible while it has no vGPU."""

    gpu: str
    is_mixed: bool

    def undo(self) -> "SetMixedSizes":
        return SetMixedSizes(gpu=self.gpu, is_mixed=not self.is_mixed)

    def __str__(self) -> str:
        mode = "mixed-size" if self.is_mixed else "equal-size"
        return f"set {mode} mode of {self.gpu}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetMigMode:
    """Switch a GPU's MIG mode; only possible while nothing uses the GPU.

    GPUs before Hopper switch at their next reset (NVIDIA Multi-Instance GPU
    User Guide, "Enable MIG Mode").
    """

    gpu: str
    is_mig: bool

    def undo(self) -> "SetMigMode":
        return SetMigMode(gpu=self.gpu, is_mig=not self.is_mig)

    def __str__(self) -> str:
        return (
            f"switch MIG mode of {self.gpu} {'on' if self.is_mig else 'off'}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRegion:
    """Load a bitstream into an FPGA region that is not in use.

    It is done when the region shows ``function``. ``slot`` is the PCI
    function of the region's port, ``card``, ``number`` and ``tool`` are as
    in ``model.Region``. ``is_forced`` loads it even if the region shows
    the function: it may be of another build, or a guest with the whole
    card may have loaded another design under the same id. ``dependents``
    are functions that only the card's own driver may use meanwhile.

    There is no undo: the former bitstream is not saved.
    """

    card: str
    number: int
    slot: str
    bitstream: model.Bitstream
    tool: str = ""
    is_forced: bool = False
    dependents: tuple[str, ...] = ()

    @property
    def region(self) -> str:
        """Return the address of the region's device."""
        return names.region_address(self.card, self.number)

    def undo(self) -> None:
        return None

    def __str__(self) -> str:
        return (
            f"load bitstream {self.bitstream.name} (function"
            f" {self.bitstream.function}) into {self.region}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetPort:
    """Release an FPGA port of a PF to its VFs, or take it back.

    The PF's ``sriov_numvfs`` must equal the number of released ports
    (drivers/fpga/dfl.c, dfl_fpga_cdev_config_ports_vf).
    """

    card: str
    number: int
    is_released: bool

    def undo(self) -> "SetPort":
        return dataclasses.replace(self, is_released=not self.is_released)

    def __str__(self) -> str:
        verb = "release" if self.is_released else "take back"
        return f"{verb} port {self.number} of {self.card}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetServices:
    """Set the services of a QAT device and so of all its VFs.

    ``services`` is a value of ``qat/cfg_services``. The device is restarted
     to apply it.
    """

    function: str
    services: str
    before: str = ""

    def undo(self) -> "SetServices":
        return SetServices(
            function=self.function, services=self.before, before=self.services
        )

    def __str__(self) -> str:
        return f"set services {self.services} of {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResetFunction:
    """Reset a function that is not in use; done when it answers again.

    There is no undo: its memory is erased.
    """

    function: str

    def undo(self) -> None:
        return None

    def __str__(self) -> str:
        return f"reset {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResetTogether:
    """Reset the bus of functions that VFIO has, and no guest.

    ``functions`` are all functions on their bus, the assigned one first. It
    is done when each of them answers again. There is no undo.
    """

    functions: tuple[str, ...]

    @property
    def function(self) -> str:
        """Return the assigned function."""
        return self.functions[0]

    def undo(self) -> None:
        return None

    def __str__(self) -> str:
        return f"reset the bus of {', '.join(self.functions)}"


def is_command_path(text: str) -> bool:
    """Return whether the text is the absolute path of a command."""
    return _COMMAND.fullmatch(text) is not None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunScrub:
    """Run an operator's command for a function between two servers.

    ``command`` is a path, see ``is_command_path``; its only argument
    is the function's address. It is done when the command exited with 0
    and the function answers. There is no undo.
    """

    command: str
    function: str

    def undo(self) -> None:
        return None

    def __str__(self) -> str:
        return f"run {self.command} {self.function}"


Action = (
    CreateMdev
    | RemoveMdev
    | SetVgpuType
    | ClearVgpuType
    | SetVgpuParams
    | SetVgpuPlacementId
    | CreateInstance
    | DestroyInstance
    | SetVfCount
    | BindDriver
    | SetMixedSizes
    | SetMigMode
    | ProgramRegion
    | SetPort
    | SetServices
    | ResetFunction
    | ResetTogether
    | RunScrub
)
