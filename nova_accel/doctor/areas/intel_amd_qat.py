# SPDX-License-Identifier: Apache-2.0
"""Checks of Intel's and AMD's GPUs, and of QAT devices."""

from collections.abc import Iterator

from nova_accel.catalog import versions
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.host.sysfs import allowed_paths, attributes
from nova_accel.model import pci

INTEL = host_checks.Area("intel", page="gpus", technology="intel")
AMD = host_checks.Area("amd", page="gpus", technology="amd")
QAT = host_checks.Area("qat", page="other-accelerators", technology="qat")
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_XE_ADMIN = (6, 19)
_FIRMWARE = "/lib/firmware"
_PACKED = ("", ".xz", ".zst")
# Firmware by driver (drivers/crypto/intel/qat, MODULE_FIRMWARE).
_QAT_FIRMWARE = {"4xxx": "qat_4xxx.bin", "420xx": "qat_420xx.bin"}


def _gpus(host: _Host) -> Iterator[pci.PciFunction]:
    """Yield Intel's GPUs with SR-IOV."""
    for card in host.cards_of(checked_host.INTEL):
        if card.total_vfs:
            yield card


@INTEL.check(
    "max-vfs",
    why="the driver refuses VFs",
    remedy=remedies.set_module_options("xe", "max_vfs=31"),
    ansible="intel_xe",
)
def check_max_vfs(host: _Host) -> _Results:
    """The driver allows VFs."""
    for module in ("xe", "i915"):
        if any(_gpus(host)) and host.parameter(module, "max_vfs") == "0":
            yield warn(
                f"{module} was loaded with max_vfs=0",
                host.sys("module", module, "parameters/max_vfs"),
            )


@INTEL.check(
    "guc",
    why="SR-IOV needs the GuC's submission",
    remedy=remedies.set_module_options("i915", "enable_guc=3"),
    ansible="intel_xe",
)
def check_guc(host: _Host) -> _Results:
    """The driver i915 submits work through the GuC."""
    value = host.parameter("i915", "enable_guc")
    number = attributes.parse_number(value)
    if any(_gpus(host)) and number is not None and not number & 1:
        yield warn(
            f"i915 was loaded with enable_guc={value}",
            host.sys("module/i915/parameters/enable_guc"),
        )


@INTEL.check(
    "vf-memory",
    why="the driver divides memory and time equally; other sizes need this"
    " directory",
    remedy="nothing; a kernel from 6.19 on with CONFIG_PCI_IOV has it",
)
def check_vf_memory(host: _Host) -> _Results:
    """The driver xe can divide a card unequally."""
    for card in _gpus(host):
        path = host.path(card, "sriov_admin")
        if (
            card.driver == "xe"
            and host.kernel >= _XE_ADMIN
            and not host.exists(path)
        ):
            yield note(f"{card.address} has no sriov_admin", path)


@AMD.check(
    "gim",
    why="AMD's driver for VFs is not loaded, and can't be before amdgpu is"
    " unbound",
    remedy=remedies.load_module("gim"),
    ansible="amd_gim",
)
def check_gim(host: _Host) -> _Results:
    """The driver gim is loaded where it is installed."""
    top = f"{allowed_paths.KERNEL_MODULES}/{host.release}/updates/dkms"
    built = [name for name in host.names(top) if name.startswith("gim.ko")]
    if built and host.lists_modules and not host.is_loaded("gim"):
        yield warn("gim is installed and not loaded", host.sys("module/gim"))


@AMD.check(
    "gim-kernel",
    why="AMD tested gim with other kernels",
    remedy="use a kernel of AMD's list, or test each update of the kernel",
)
def check_gim_kernel(host: _Host) -> _Results:
    """The kernel is on AMD's list for gim."""
    kernels = versions.load().gim_kernels
    if host.is_loaded("gim") and host.kernel and host.kernel not in kernels:
        yield note(
            f"kernel {host.release} is not on AMD's list for gim of"
            f" {versions.load().date}",
            allowed_paths.KERNEL_RELEASE,
        )


@QAT.check(
    "state",
    why="a device that is down serves no guest",
    remedy=remedies.write_attribute("qat/state", "up"),
    ansible="qat",
)
def check_qat_state(host: _Host) -> _Results:
    """Each QAT device is up."""
    for card in host.qats:
        if host.attribute(card, "qat/state") == "down":
            yield warn(f"{card.address} is down", host.path(card, "qat/state"))


@QAT.check(
    "services",
    why="guests get VFs without a service",
    remedy='write "services": "sym;asym" into the device_spec line of the'
    " device",
    ansible="qat",
)
def check_qat_services(host: _Host) -> _Results:
    """Each QAT device has services."""
    for card in host.qats:
        path = host.path(card, "qat/cfg_services")
        if host.exists(path) and not host.text(path):
            yield warn(f"{card.address} has no services", path)


@QAT.check(
    "firmware",
    why="the driver can't start the device",
    remedy="apt install firmware-intel-misc || dnf install linux-firmware\n"
    "bind the device again",
    ansible="qat",
)
def check_qat_firmware(host: _Host) -> _Results:
    """The firmware of each QAT device is installed."""
    for driver in sorted({card.driver or "" for card in host.qats}):
        name = _QAT_FIRMWARE.get(driver, "")
        paths = [f"{_FIRMWARE}/{name}{suffix}" for suffix in _PACKED]
        if (
            name
            and host.exists(_FIRMWARE)
            and not any(map(host.exists, paths))
        ):
            yield warn(f"firmware {name} is missing", paths[0])


@QAT.check(
    "host-use",
    why="qatlib on the host takes VFs that guests should get",
    remedy="systemctl disable --now qat",
    ansible="qat",
)
def check_qat_host_use(host: _Host) -> _Results:
    """The host's qatlib uses no VFs."""
    if host.qats and host.is_active("qat"):
        yield warn("the service qat is active", host.service("qat"))


@QAT.check(
    "auto-reset",
    why="after a fatal error the device stays down until it is reset by hand",
    remedy=remedies.write_attribute("qat/auto_reset", "on"),
    ansible="qat",
)
def check_qat_auto_reset(host: _Host) -> _Results:
    """QAT devices reset themselves after a fatal error."""
    for card in host.qats:
        path = host.path(card, "qat/auto_reset")
        if host.text(path) == "off":
            yield note(f"{card.address} does not reset itself", path)


@QAT.check(
    "errors-fatal",
    why="the device has failed; nova-accel sets it aside",
    remedy="reset the device, then\n"
    + remedies.write_attribute("qat_ras/reset_error_counters", "1"),
)
def check_qat_errors(host: _Host) -> _Results:
    """No QAT device had a fatal error."""
    for card in host.qats:
        path = host.path(card, "qat_ras/errors_fatal")
        if host.text(path) not in ("", "0"):
            yield fail(
                f"{card.address} had {host.text(path)} fatal errors", path
            )


@QAT.check(
    "errors-nonfatal",
    why="requests of guests failed",
    remedy="see the kernel's log (journalctl -k --grep QAT)",
)
def check_qat_nonfatal(host: _Host) -> _Results:
    """No QAT device had an uncorrected error."""
    for card in host.qats:
        path = host.path(card, "qat_ras/errors_nonfatal")
        if host.text(path) not in ("", "0"):
            yield note(
                f"{card.address} had {host.text(path)} uncorrected errors",
                path,
            )
