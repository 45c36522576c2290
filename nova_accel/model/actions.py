# SPDX-License-Identifier: Apache-2.0
"""Changes of a host, as values.

An action says what shall be, not what to do: one whose effect is there
already is done. ``str()`` gives the words of the log.
"""

import dataclasses

from nova_accel import model
from nova_accel.model import names

# The most seconds that loading a bitstream may be given: an hour.
MOST_PROGRAM_S = 3600


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateMdev:
    """Make a mediated device; undone by RemoveMdev."""

    parent: str
    type_id: str
    uuid: str

    def undo(self) -> "RemoveMdev":
        """Return the action that takes this one back."""
        return RemoveMdev(
            parent=self.parent, type_id=self.type_id, uuid=self.uuid
        )

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"create mdev {self.uuid} ({self.type_id}) on {self.parent}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMdev:
    """Remove a mediated device; undone by CreateMdev."""

    parent: str
    type_id: str
    uuid: str

    def undo(self) -> CreateMdev:
        """Return the action that takes this one back."""
        return CreateMdev(
            parent=self.parent, type_id=self.type_id, uuid=self.uuid
        )

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"remove mdev {self.uuid} ({self.type_id}) from {self.parent}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetVgpuType:
    """Type a VF of NVIDIA's vendor-specific VFIO; undone by clearing it.

    ``type_id`` is the decimal number of ``current_vgpu_type``.
    """

    function: str
    type_id: str

    def undo(self) -> "ClearVgpuType":
        """Return the action that takes this one back."""
        return ClearVgpuType(function=self.function, type_id=self.type_id)

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"set vGPU type {self.type_id} on {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClearVgpuType:
    """Free a VF of its vGPU type; undone by setting it again."""

    function: str
    type_id: str

    def undo(self) -> SetVgpuType:
        """Return the action that takes this one back."""
        return SetVgpuType(function=self.function, type_id=self.type_id)

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"clear vGPU type {self.type_id} of {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetVgpuParams:
    """Write a vGPU's parameters, ``key=value,key=value``.

    ``target`` is an mdev's uuid or a VF's address. ``before`` is what was
    there; empty parameters clear them.
    """

    target: str
    params: str
    before: str = ""

    def undo(self) -> "SetVgpuParams":
        """Return the action that takes this one back."""
        return SetVgpuParams(
            target=self.target, params=self.before, before=self.params
        )

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"set vgpu_params of {self.target} to {self.params!r}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetPlacement:
    """Move a vGPU that nobody has opened to a place on its GPU.

    There is nothing to undo: the place goes with the vGPU.
    """

    function: str
    start: int

    def undo(self) -> None:
        """Return None: the place goes with the vGPU."""

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"place the vGPU of {self.function} at {self.start}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateInstance:
    """Make a GPU instance and the compute instance that fills it.

    ``gpu`` is the PF's address, ``kind`` NVIDIA's name (``1g.5gb``) and
    ``start`` the memory slice at which it begins.
    """

    gpu: str
    kind: str
    start: int

    def undo(self) -> "DestroyInstance":
        """Return the action that takes this one back."""
        return DestroyInstance(gpu=self.gpu, kind=self.kind, start=self.start)

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"create GPU instance {self.kind} at {self.start} of {self.gpu}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DestroyInstance:
    """Unmake a GPU instance that no vGPU stands in.

    ``start`` None stands for every instance of the kind that is empty;
    one that is not stays, and that is no failure.
    """

    gpu: str
    kind: str
    start: int | None = None

    def undo(self) -> CreateInstance | None:
        """Return the action that takes this one back, if one can."""
        if self.start is None:
            return None
        return CreateInstance(gpu=self.gpu, kind=self.kind, start=self.start)

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        where = "that is empty" if self.start is None else f"at {self.start}"
        return f"destroy GPU instance {self.kind} {where} of {self.gpu}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetVfCount:
    """Enable so many VFs on a PF; 0 disables them.

    The kernel takes no other count while VFs are enabled, so 0 goes
    first. ``tool`` is set where only the vendor's tool can do it
    (``sriov-manage`` of NVIDIA's host driver). ``is_probed`` tells
    whether the host's drivers may take the VFs, now and later.
    """

    function: str
    count: int
    before: int = 0
    tool: str = ""
    is_probed: bool = True

    def undo(self) -> "SetVfCount":
        """Return the action that takes this one back."""
        return dataclasses.replace(self, count=self.before, before=self.count)

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"set {self.count} virtual functions on {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BindDriver:
    """Bind a function to a driver, empty for none.

    ``before`` is what had it; ``driver_override`` makes the kernel choose
    the driver.
    """

    function: str
    driver: str
    before: str = ""

    def undo(self) -> "BindDriver":
        """Return the action that takes this one back."""
        return BindDriver(
            function=self.function, driver=self.before, before=self.driver
        )

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"bind {self.function} to {self.driver or 'no driver'}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetMixedSizes:
    """Switch a GPU's mixed-size mode; only while it holds no vGPU."""

    gpu: str
    is_mixed: bool

    def undo(self) -> "SetMixedSizes":
        """Return the action that takes this one back."""
        return SetMixedSizes(gpu=self.gpu, is_mixed=not self.is_mixed)

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        mode = "mixed-size" if self.is_mixed else "equal-size"
        return f"set {mode} mode of {self.gpu}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRegion:
    """Load a bitstream into an FPGA region that nothing uses.

    It is done when the region shows ``function``. ``slot`` is the PCI
    function behind which the region's port is, ``card``, ``number`` and
    ``tool`` are as in ``model.Region``. ``is_forced`` loads it also where
    the function is there already: a guest that had the whole card may
    have put another one under its id, or it is another build.
    ``dependents`` are functions that no driver of the host may use
    meanwhile, but the card's own.

    There is nothing to undo: what was there before is not kept.
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
        """Return None: what was there before is not kept."""

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return (
            f"load bitstream {self.bitstream.name} (function"
            f" {self.bitstream.function}) into {self.region}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetPort:
    """Release an FPGA port of a PF to its VFs, or take it back.

    Released ports are what ``sriov_numvfs`` of the PF must be equal to
    (drivers/fpga/dfl.c, dfl_fpga_cdev_config_ports_vf).
    """

    card: str
    number: int
    is_released: bool

    def undo(self) -> "SetPort":
        """Return the action that takes this one back."""
        return dataclasses.replace(self, is_released=not self.is_released)

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        verb = "release" if self.is_released else "take back"
        return f"{verb} port {self.number} of {self.card}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetServices:
    """Choose the services of a QAT device, whose VFs all give the same.

    ``services`` is a word of ``qat/cfg_services``. The device goes down
    for it, and up again.
    """

    function: str
    services: str
    before: str = ""

    def undo(self) -> "SetServices":
        """Return the action that takes this one back."""
        return SetServices(
            function=self.function, services=self.before, before=self.services
        )

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"set services {self.services} of {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResetFunction:
    """Reset a function that nobody uses; done when it answers again.

    There is nothing to undo: what it held is gone, which is the purpose.
    """

    function: str

    def undo(self) -> None:
        """Return None: what it held is gone."""

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"reset {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunScrub:
    """Run an operator's command for a function between two servers.

    ``command`` is a path, see ``names.is_command``; the function's address
    is its only argument. Done when it ended well and the function answers.
    """

    command: str
    function: str

    def undo(self) -> None:
        """Return None: nobody knows what it did."""

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"run {self.command} {self.function}"


Action = (
    CreateMdev
    | RemoveMdev
    | SetVgpuType
    | ClearVgpuType
    | SetVgpuParams
    | SetPlacement
    | CreateInstance
    | DestroyInstance
    | SetVfCount
    | BindDriver
    | SetMixedSizes
    | ProgramRegion
    | SetPort
    | SetServices
    | ResetFunction
    | RunScrub
)
