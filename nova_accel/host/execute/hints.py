# SPDX-License-Identifier: Apache-2.0
"""Hints for the operator, by action and errno.

The meaning of an errno depends on the file: EPERM is a missing right for an
mdev, and an existing vGPU for a typed VF.
"""

import errno
from collections.abc import Mapping

from nova_accel.host.execute import privileged
from nova_accel.model import actions

_LOG = "see the kernel's log (dmesg) on this host and `nova-accel inspect`"
_RIGHTS = (
    "nova-compute's privileged daemon may not write there: check its"
    " capabilities"
)
_TAKEN = (
    "the function holds a vGPU already: of a concurrent spawn, or an orphan"
    " (`nova-accel inspect`)"
)
_FULL = (
    "the device is full: another guest took the room; free a partition or"
    " choose another profile"
)
_OPEN = "something holds the device; stop it first"
_NO_NVML = (
    "NVML can't be called: install nvidia-ml-py and NVIDIA's host driver, or"
    " create GPU instances by hand"
)

_SWITCH = "power-cycle the card, or the host"
_NO_MIG = "the GPU is not in MIG mode: nvidia-smi -i GPU -mig 1"
_UNRESET = (
    '`nova-accel doctor --only pci.reset` says why; write "scrub": "none"'
    " into its own line of device_spec to offer it without a reset, then"
    " `nova-accel heal`"
)
# Hints for refusals of this library, not of the kernel.
UNRESETTABLE = (
    "nothing more was done to it, and it may keep data of its last server:"
    f" {_UNRESET}"
)
OTHER_VGPU = (
    "the function has another vGPU than the one to clear, so it stays;"
    " see `nova-accel inspect`"
)
STALE = (
    "virtual functions were enabled since the host was read: disable them if"
    " they are not needed, or remove num_vfs from device_spec"
)
WITH_GUEST = (
    "a guest may have it, so nothing was touched: stop the guest, and bind"
    " the function to the host's driver"
)
WITH_HOST = (
    "the host uses the card's present function, so nothing was touched:"
    " unbind that function from its driver, or leave the card as it is"
)

_COMMON: Mapping[int, str] = {
    errno.ENOSPC: _FULL,
    errno.EUSERS: "the parent has no instance left; free one first",
    errno.EIO: "the device's driver failed or the device is full: see the"
    " kernel's log (dmesg) on this host",
    errno.EEXIST: "the uuid is in use by another mdev on this host; remove"
    " that one",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOENT: "the device or the type is gone: see the kernel's log"
    " and `nova-accel inspect`",
    errno.EBUSY: _OPEN,
    errno.ETIMEDOUT: f"the kernel did not answer in {privileged.TIMEOUT_S} s:"
    " something may hold the device open",
}
_BY_ACTION: Mapping[type[actions.Action], Mapping[int, str]] = {
    actions.SetVgpuType: {
        errno.EPERM: _TAKEN,
        errno.EBUSY: _TAKEN,
        errno.EIO: "the type can't be made there now: the GPU is full, holds"
        " vGPUs of another size, or its GPU instances have no room; see"
        " creatable_vgpu_types of the function and the kernel's log",
        errno.EINVAL: "the type does not fit beside the vGPUs of this GPU,"
        " or its driver has no such type",
        errno.ENODEV: "the driver of this GPU has no such type: ids change"
        " with the driver's release; restart nova-compute to read them again",
        errno.ENOENT: "the function is no VF of NVIDIA's vendor-specific"
        " VFIO any more: enable the VFs again (sriov-manage -e)",
    },
    actions.ClearVgpuType: {
        errno.EPERM: _RIGHTS + "; or the vGPU is gone already",
        errno.EBUSY: "a guest has the vGPU open; stop the guest first",
    },
    actions.SetVgpuParams: {
        errno.ENOENT: "this host's driver takes no vgpu_params, or the vGPU"
        " is gone; remove vgpu_params from device_spec",
        errno.EINVAL: "the driver knows no such parameter or value: correct"
        " vgpu_params in device_spec",
        errno.EBUSY: "a guest has the vGPU open; stop the guest first",
        errno.EPERM: "the function has no vGPU yet, or it is open; " + _RIGHTS,
    },
    actions.SetVgpuPlacementId: {
        errno.ENXIO: "the function has no vGPU, or its GPU is not in"
        " mixed-size mode",
        errno.EBUSY: "the place is taken or a guest has the vGPU open",
        errno.EINVAL: "a vGPU of this type can't start there",
        errno.ENOENT: "the driver places vGPUs itself: placement_id came"
        " with release 580",
    },
    actions.CreateInstance: {
        errno.ENOSPC: "no room for the GPU instance: another one is in its"
        " place; destroy it when it is empty",
        errno.EBUSY: "the GPU is in use by another program; stop it first",
        errno.EINVAL: "the GPU has no such kind of instance at that place",
        errno.ENODEV: "NVML does not know the GPU, or no such kind of"
        " instance; see `nova-accel inspect`",
        errno.EOPNOTSUPP: _NO_MIG,
        errno.ENXIO: _NO_NVML,
        errno.ENOSYS: _NO_NVML,
    },
    actions.DestroyInstance: {
        errno.EBUSY: "a vGPU or a program is in the GPU instance; stop it"
        " first",
        errno.EOPNOTSUPP: _NO_MIG,
        errno.ENXIO: _NO_NVML,
        errno.ENOSYS: _NO_NVML,
    },
    actions.SetVfCount: {
        errno.ENOENT: "no driver that makes VFs is bound to the function, or"
        " the vendor's tool is not installed: NVIDIA's cards need"
        f" /{privileged.SRIOV_MANAGE} of the host driver",
        errno.EBUSY: "guests may hold them: stop those, clear the vGPUs and"
        " unbind what is bound to a VFIO driver first",
        errno.ERANGE: "the function has fewer VFs (sriov_totalvfs): lower"
        " num_vfs in device_spec",
        errno.EACCES: f"/{privileged.SRIOV_MANAGE} and its directories must"
        " be root's and writable by no other user, and no links; " + _RIGHTS,
        errno.EINVAL: "the function's driver refuses that number of VFs:"
        " correct num_vfs in device_spec",
        errno.ENOSPC: "the bus has no numbers or memory left for VFs: see"
        " SR-IOV in the firmware's setup",
        errno.ENOMEM: "the bus has no numbers or memory left for VFs: see"
        " SR-IOV in the firmware's setup",
        errno.ETIMEDOUT: "the VFs were not made in time: something may hold"
        " the card open; see the kernel's log (dmesg) on this host",
    },
    actions.BindDriver: {
        errno.EBUSY: "guests may hold them: stop those and clear the vGPUs"
        " first",
        errno.ENOPKG: "load the driver first (modprobe), and at boot",
        errno.ENODEV: "the driver does not take the function: see the"
        " kernel's log (dmesg) on this host",
        errno.EINVAL: "the driver does not take the function: is the IOMMU"
        " on? See the kernel's log (dmesg) on this host",
        errno.ENOENT: "the function is gone: see the kernel's log and"
        " `nova-accel inspect`",
    },
    actions.SetMixedSizes: {
        errno.EBUSY: "the mode changes only while the GPU holds no vGPU;"
        " delete its servers first",
        errno.EOPNOTSUPP: "the GPU has no mixed-size mode: write"
        ' "sizes": "equal" into its line of device_spec',
        errno.ENXIO: _NO_NVML,
        errno.ENOSYS: _NO_NVML,
    },
    actions.SetMigMode: {
        errno.EINPROGRESS: "the GPU switches at its next reset: reset it"
        " (nvidia-smi --gpu-reset) or power-cycle the machine",
        errno.EBUSY: "the mode changes only while nothing uses the GPU: stop"
        " its programs, and remove its GPU instances and VFs first",
        errno.EOPNOTSUPP: "the GPU has no MIG mode",
        errno.ENXIO: _NO_NVML,
        errno.ENOSYS: _NO_NVML,
    },
    actions.ProgramRegion: {
        errno.EBUSY: "the region is in use: stop what has /dev/dfl-port.* or"
        " the card open, or wait for another one to be loaded",
        errno.EINVAL: "it is no bitstream for this card, or a damaged one:"
        " compare its interface id with the region's (`nova-accel inspect`)",
        errno.EBADMSG: "the bitstream's file has changed since it was"
        " checked: remove it from state_dir, and it is fetched again; restore"
        " the file if it is a blank of device_spec",
        errno.EFBIG: "the bitstream is larger than any FPGA's",
        errno.ELOOP: "the bitstream's path is a link: name the file itself",
        errno.EISDIR: "the bitstream's path is a directory",
        errno.EACCES: "the vendor's tool and its directories must be root's"
        " and writable by no other user, and no links; " + _RIGHTS,
        errno.ENOENT: "the bitstream's file, the card's device in /dev or"
        " the vendor's tool (/usr/bin/fpgaconf, /opt/xilinx/xrt/bin/xrt-smi)"
        " is missing",
        errno.ENODEV: "the card has no device to load it by: is it bound to"
        " dfl-pci with dfl-fme, and not to a guest's driver? See"
        " `nova-accel inspect`",
        errno.ENXIO: "the card is gone: see the kernel's log (dmesg)",
        errno.ENOTTY: "that device loads no bitstreams: update the kernel",
        errno.ENOEXEC: "the vendor's tool can't be started: reinstall it",
        errno.EEXIST: "/run is no directory on this host",
        errno.ENOSPC: "no room for a copy of the bitstream in /run",
        errno.EIO: "the vendor's tool or the card's driver failed: see the"
        " kernel's log (dmesg) on this host",
        errno.ETIMEDOUT: "the card did not answer, or the load took longer"
        " than nova.conf [nova_accel] program_timeout: see the kernel's log"
        " (dmesg) on this host",
    },
    actions.SetPort: {
        errno.EBUSY: "the port is in use, or VFs are enabled: stop what has"
        " /dev/dfl-port.* open, and disable the VFs",
        errno.EINVAL: "the card's driver refuses it: see the kernel's log"
        " (dmesg) on this host",
        errno.ENODEV: "the card has no such port, or dfl-fme is not bound to"
        " it: see `nova-accel inspect`",
    },
    actions.SetServices: {
        errno.EBUSY: "the device is in use or being reset: stop the guests"
        " and programs that have its functions, and disable its VFs",
        errno.EINVAL: "the device knows no such services: correct services"
        " in device_spec",
        errno.ENOENT: "this device's driver has no choice of services:"
        " remove services from device_spec, or update the kernel",
    },
    actions.ResetFunction: {
        errno.ENOENT: f"the kernel knows no way to reset it: {_UNRESET}",
        errno.ENOTTY: "none of its reset methods (reset_method) works:"
        f" {_UNRESET}",
        errno.ENODEV: "the function does not answer after its reset: see"
        f" the kernel's log (dmesg) on this host; {_SWITCH}",
        errno.EBUSY: "a guest or the host uses the function: stop that",
        errno.ETIMEDOUT: "the kernel has not finished after"
        f" {privileged.RESET_S} s: see its log (dmesg); {_SWITCH}",
    },
    actions.ResetTogether: {
        errno.ENOENT: "the host has no node of their IOMMU group in"
        " /dev/vfio: is /dev of this host there, and vfio-pci loaded?",
        errno.ENOTTY: "the kernel can't reset their bus: " + _UNRESET,
        errno.EINVAL: "VFIO does not have all functions on their bus: see"
        " `nova-accel inspect` and the kernel's log (dmesg) on this host",
        errno.ENODEV: "a function does not answer after the reset: see"
        f" the kernel's log (dmesg) on this host; {_SWITCH}",
        errno.EBUSY: "a guest or another process has one of them: stop it",
        errno.ETIMEDOUT: "the kernel has not finished after"
        f" {privileged.RESET_S} s: see its log (dmesg); {_SWITCH}",
    },
    actions.RunScrub: {
        errno.EACCES: "the command and its directories must be root's and"
        " writable by no other user, and no links",
        errno.ENOENT: "there is no such command on this host",
        errno.ENODEV: "the function does not answer after the command: see"
        f" the kernel's log (dmesg) on this host; {_SWITCH}",
        errno.ENOEXEC: "it is no program, or a script without #!",
        errno.EIO: "the command failed, see its output",
        errno.ETIMEDOUT: "the command did not end in"
        f" {privileged.SCRUB_S} s, and was killed",
    },
}
# The kernel accepted the change, but reading back shows no effect.
_WITHOUT_EFFECT: Mapping[type[actions.Action], str] = {
    actions.ProgramRegion: "the bitstream is not what its function id says,"
    " or the card did not take it: see the kernel's log (dmesg)",
    actions.SetVgpuParams: "the driver has other parameters than requested:"
    " correct vgpu_params in device_spec",
    actions.SetVfCount: "the driver made fewer VFs than asked: lower"
    " num_vfs in device_spec, or see the kernel's log (dmesg)",
    actions.BindDriver: "no driver took the function: is the IOMMU on, and"
    " does the driver know this card? See the kernel's log (dmesg)",
}


def get_hint(action: actions.Action, number: int) -> str:
    """Return what the operator can do.

    :param number: errno of the refusal; 0 for a change without effect.
    """
    if not number:
        return _WITHOUT_EFFECT.get(type(action), _LOG)
    by_errno = _BY_ACTION.get(type(action), {})
    return by_errno.get(number) or _COMMON.get(number, _LOG)
