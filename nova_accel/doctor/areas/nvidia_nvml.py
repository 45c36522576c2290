# SPDX-License-Identifier: Apache-2.0
"""Checks of what NVML reports of NVIDIA's cards and of guests on them."""

from collections.abc import Iterator

from nova_accel.catalog import versions
from nova_accel.discovery import vgpu_guests
from nova_accel.doctor import checked_host, host_checks
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.host import nvml_gpus

AREA = host_checks.Area("nv", page="gpus", technology="nvidia")
LICENSES = host_checks.Area("nv", page="licenses", technology="nvidia")
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_COMPLETED, _NOT_SUPPORTED = "completed", "not_supported"


@AREA.check(
    "nvml",
    why="MIG, mixed sizes, faults and NVLink stay unknown",
    remedy="run as root; see nvidia-smi; where Python lacks nvidia-ml-py:"
    " install nova-accel[nvml]",
)
def check_nvml(host: _Host) -> _Results:
    """NVML answers for each card of NVIDIA's driver."""
    for problem in nvml_gpus.problems(host.gpus):
        yield warn(f"NVML: {problem.where}: {problem.reason}")


@AREA.check(
    "faults",
    why="nova-accel sets the card aside",
    remedy="reset the card, or replace it:\n"
    "nvidia-smi --gpu-reset -i ADDRESS\nnova-accel heal ADDRESS",
)
def check_faults(host: _Host) -> _Results:
    """NVML reports no fault of a card."""
    for address, gpu in host.gpus.items():
        if gpu.fault:
            yield fail(f"NVML reports a fault of {address}: {gpu.fault}")


@AREA.check(
    "mig",
    why="a card in MIG mode without GPU instances makes no vGPU",
    remedy='write "mig_instances": "dynamic" into its line of device_spec,'
    " or\nnvidia-smi mig -i ADDRESS -cgi PROFILE -C",
)
def check_mig(host: _Host) -> _Results:
    """Cards in MIG mode have GPU instances."""
    for address, gpu in host.gpus.items():
        if gpu.is_mig and not gpu.instances and "instances" not in gpu.unread:
            yield note(f"{address} is in MIG mode without GPU instances")


@AREA.check(
    "ecc",
    why="a live migration is refused between cards of which one has ECC, and"
    " the mode changes at the next reset",
    remedy="take the vGPUs off the card, then\n"
    "nvidia-smi --gpu-reset -i ADDRESS",
)
def check_ecc(host: _Host) -> _Results:
    """The ECC mode of each card stays as it is at the next reset."""
    for address, gpu in host.gpus.items():
        if gpu.ecc and gpu.ecc[0] != gpu.ecc[1]:
            change = "off" if gpu.ecc[0] else "on"
            yield warn(f"ECC of {address} will be {change} after a reset")


@AREA.check(
    "fabric",
    why="CUDA fails in the guest until the card is registered with its"
    " NVSwitches (error 802)",
    remedy="systemctl status nvidia-fabricmanager\n"
    "tail /var/log/fabricmanager.log",
    ansible="nvidia_fabric_manager",
)
def check_fabric(host: _Host) -> _Results:
    """Each card behind NVSwitches is registered with them."""
    for address, gpu in host.gpus.items():
        state, status = gpu.fabric or (_NOT_SUPPORTED, 0)
        if state == _COMPLETED and status:
            yield warn(f"{address} failed to register: NVML error {status}")
        elif state not in (_COMPLETED, _NOT_SUPPORTED, ""):
            text = state.replace("_", " ")
            yield warn(f"the registration of {address} is {text}")


@LICENSES.check(
    "license",
    why="NVIDIA's driver slows such a guest down after some minutes; nothing"
    " else reports it",
    remedy="in the guest:\nnvidia-smi -q\njournalctl -u nvidia-gridd\n"
    "on this host:\nnova-accel doctor --cloud",
)
def check_license(host: _Host) -> _Results:
    """Each guest of a vGPU has a licence."""
    for address, gpu in host.gpus.items():
        for vgpu in gpu.vgpus or ():
            if vgpu_guests.is_unlicensed(vgpu.license):
                state = vgpu.license.replace("_", ", ")
                yield warn(
                    f"server {vgpu.server or '(unknown)'} on {address} is"
                    f" {state}"
                )


@LICENSES.check(
    "guest-driver",
    why="a driver of a guest must not be of a later branch than the vGPU"
    " manager",
    remedy="install the driver of the vGPU manager's release in the guest, or"
    " a later vGPU manager on the host",
)
def check_guest_driver(host: _Host) -> _Results:
    """No guest has a driver of a later branch than the host."""
    table = versions.load()
    for address, gpu in host.gpus.items():
        own = _find_branch(table, gpu.driver_version)
        for vgpu in gpu.vgpus or ():
            if own and _find_branch(table, vgpu.driver) > own:
                yield warn(
                    f"server {vgpu.server or '(unknown)'} on {address} has"
                    f" driver {vgpu.driver}, the host {gpu.driver_version}"
                )


def _find_branch(table: versions.Versions, version: str) -> int:
    """Return the branch of a driver, 0 for one that is not in the table.

    Drivers for Windows have numbers between those of two branches: 553 is
    of the branch 550.
    """
    number = version.partition(".")[0]
    if not number.isdecimal():
        return 0
    branches = sorted(map(int, table.nvidia_branches))
    return max((b for b in branches if b <= int(number)), default=0)
