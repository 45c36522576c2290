# SPDX-License-Identifier: Apache-2.0
"""Running vGPUs of a GPU: guest, licence and driver in the guest.

NVML reports them on the host; nothing runs in the guest. Names and codes are
those of nvml.h.
"""

import contextlib
import datetime
import functools
import re
from collections.abc import Callable
from typing import Any

from nova_accel.host.nvml import nvml_library
from nova_accel.host.nvml.nvml_library import NvmlError, call
from nova_accel.host.nvml_gpus import NvmlVgpu

# NVML_GRID_LICENSE_EXPIRY_VALID, NVML_GRID_LICENSE_EXPIRY_PERMANENT.
_VALID, _PERMANENT = 2, 4
# NVML answers "Not Available" until the guest has loaded its driver.
_DRIVER = re.compile(r"\d+(\.\d+)+")


def read_vgpus(gpu: Any) -> tuple[NvmlVgpu, ...]:
    """Return the running vGPUs of a GPU, sorted.

    A vGPU that ends meanwhile is left out.

    :param gpu: NVML's handle of the GPU.
    :raises NvmlError: the GPU is lost, or the driver makes no vGPUs.
    """
    vgpus = []
    for instance in call("nvmlDeviceGetActiveVgpus", gpu):
        number = _query("nvmlVgpuInstanceGetType", instance)
        if number is None:
            continue
        state, expires = _read_license(instance)
        vgpus.append(
            NvmlVgpu(
                server=_read_if_supported(
                    functools.partial(nvml_library.read_server, instance), ""
                ),
                mdev=_read_text("nvmlVgpuInstanceGetMdevUUID", instance),
                type_id=str(int(number)),
                license=state,
                expires=expires,
                driver=_read_driver(instance),
            )
        )
    return tuple(sorted(vgpus))


def _query(name: str, instance: Any) -> Any:
    """Return the result of a call for a vGPU, None without one.

    :raises NvmlError: the GPU is lost.
    """
    return _read_if_supported(lambda: call(name, instance), None)


def _read_if_supported(query: Callable[[], Any], default: Any) -> Any:
    try:
        return query()
    except NvmlError as error:
        if error.is_unsupported:
            return default
        raise


def _read_text(name: str, instance: Any) -> str:
    value = _query(name, instance)
    return "" if value is None else nvml_library.text(value)


def _read_driver(instance: Any) -> str:
    version = _read_text("nvmlVgpuInstanceGetVmDriverVersion", instance)
    return version if _DRIVER.fullmatch(version) else ""


def _read_license(instance: Any) -> tuple[str, str]:
    """Return the state of a licence and its end, both empty if unknown."""
    info = _query("nvmlVgpuInstanceGetLicenseInfo_v2", instance)
    if info is None:
        return "", ""
    end = info.licenseExpiry
    expires = "permanent" if end.status == _PERMANENT else ""
    if end.status == _VALID:
        with contextlib.suppress(ValueError):  # no date
            expires = datetime.datetime(
                *(end.year, end.month, end.day, end.hour, end.min, end.sec),
                tzinfo=datetime.UTC,
            ).isoformat()
    return nvml_library.license_name(int(info.currentState)), expires
