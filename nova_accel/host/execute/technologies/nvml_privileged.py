# SPDX-License-Identifier: Apache-2.0
"""Privileged functions of NVML; see ``privileged`` for their rules."""

from collections.abc import Callable, Iterable
from typing import Any

from nova_accel import model
from nova_accel.host import nvml_gpus
from nova_accel.host.execute import argument_checks, privileged
from nova_accel.host.nvml import (
    gpu_reader,
    gpu_state,
    usage_reader,
    xid_events,
)
from nova_accel.host.state import device_notes
from nova_accel.model import usage

_SILENT = {
    "gpus": [],
    "problems": [["NVML", f"gives no answer in {privileged.TIMEOUT_S} s"]],
    "reason": "",
}
_NO_USAGE = usage.UsageSample(
    problems=(
        model.Problem(
            where="usage of GPUs",
            reason=f"no answer in {privileged.TIMEOUT_S} s",
        ),
    )
)


def open_reader(
    in_use: Callable[[], Iterable[str]], faulted: device_notes.FaultNotes
) -> nvml_gpus.ReadGpus:
    """Return ``read_gpus`` that sets aside GPUs with a fatal Xid error.

    :param in_use: returns the addresses of the GPUs to watch.
    """
    return xid_events.listening(read_gpus, in_use, faulted)


def read_gpus() -> nvml_gpus.NvmlGpus:
    """Return NVML's state of all GPUs, as root reads it; never raises.

    Only root can read memory slices. Without nvidia-ml-py the daemon is not
    called; a failure of the daemon is a problem in the result.
    """
    if not gpu_reader.is_installed():
        return gpu_reader.read_gpus()
    try:
        return gpu_state.from_plain(read_plain_gpus())
    except Exception as error:  # the daemon may fail to start for any reason
        reason = f"nova-compute's privileged daemon can't ask it: {error!r}"
        return nvml_gpus.NvmlGpus(
            {}, (model.Problem(where="NVML", reason=reason),)
        )


@privileged.entrypoint(late=_SILENT)
def read_plain_gpus() -> dict[str, Any]:
    """Return NVML's state of all GPUs as plain values."""
    return gpu_state.to_plain(gpu_reader.read_gpus())


def read_usage() -> usage.UsageSample:
    """Return NVML's usage of all GPUs and vGPUs.

    The daemon reads it, as it has NVML and its rights already. Without
    nvidia-ml-py the daemon is not called.

    :raises ValueError: the daemon is of another release.
    """
    if not gpu_reader.is_installed():
        return usage.UsageSample()
    return usage.FORMAT.decode(read_plain_usage())


@privileged.entrypoint(late=usage.FORMAT.encode(_NO_USAGE))
def read_plain_usage() -> str:
    """Return NVML's usage of all GPUs and vGPUs as a JSON document."""
    return usage.FORMAT.encode(usage_reader.read_usage())


@privileged.entrypoint()
def create_instance(gpu: str, kind: str, start: int) -> int:
    """Create a GPU instance and the compute instance that fills it."""
    return gpu_reader.create_instance(
        argument_checks.address(gpu),
        argument_checks.part(kind, "kind of GPU instance"),
        argument_checks.count(start, "memory slice"),
    )


@privileged.entrypoint()
def destroy_instance(gpu: str, kind: str, start: int | None) -> int:
    """Destroy the GPU instance at a start, None for all unused ones."""
    return gpu_reader.destroy_instance(
        argument_checks.address(gpu),
        argument_checks.part(kind, "kind of GPU instance"),
        None
        if start is None
        else argument_checks.count(start, "memory slice"),
    )


@privileged.entrypoint()
def set_mixed(gpu: str, is_mixed: bool) -> int:
    return gpu_reader.set_mixed(argument_checks.address(gpu), bool(is_mixed))


@privileged.entrypoint()
def set_mig(gpu: str, is_mig: bool) -> int:
    return gpu_reader.set_mig(argument_checks.address(gpu), bool(is_mig))
