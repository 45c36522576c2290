# SPDX-License-Identifier: Apache-2.0
"""The lab VM: Debian's kernel, real devices, libvirtd; see README.md."""

from tests.lab.vm.errors import (
    BootError,
    JobTimeoutError,
    LabVmError,
    NotRunningError,
    PrepareError,
)
from tests.lab.vm.job import run_job
from tests.lab.vm.layout import PORT_VARIABLE, agent_url, libvirt_uri
from tests.lab.vm.prepare import prepare
from tests.lab.vm.serve import (
    exec_prefix,
    guest_exec,
    is_up,
    shared_dir,
    start,
    stop,
    switch_off,
    virt_type,
)

#: what the lab VM needs of Debian 12, to build and to run
DEBIAN_PACKAGES = (
    "busybox-static",
    "cpio",
    "gcc",
    "iproute2",
    "kmod",
    "libc6-dev",
    "libelf1",
    "libfuse3-dev",
    "libvirt-clients",
    "libvirt-daemon-system",
    "make",
    "mdevctl",
    "pciutils",
    "qemu-system-x86",
    "qemu-utils",
    "socat",
    "udev",
    "xz-utils",
    "zstd",
)

__all__ = [
    "DEBIAN_PACKAGES",
    "PORT_VARIABLE",
    "BootError",
    "JobTimeoutError",
    "LabVmError",
    "NotRunningError",
    "PrepareError",
    "agent_url",
    "exec_prefix",
    "guest_exec",
    "is_up",
    "libvirt_uri",
    "prepare",
    "run_job",
    "shared_dir",
    "start",
    "stop",
    "switch_off",
    "virt_type",
]
