# SPDX-License-Identifier: Apache-2.0
"""Paths of a host that commands, the doctor and captures may read.

nova-compute reads fewer of them (``allowed_paths.NOVA``).
"""

import re
from collections.abc import Iterator

from nova_accel.host.sysfs import allowed_paths
from nova_accel.host.sysfs.allowed_paths import KERNEL_ARGUMENTS

# The last one is what Kolla-Ansible has merged for its container.
NOVA_CONF = (
    "/etc/nova/nova.conf",
    "/etc/nova/nova-compute.conf",
    "/etc/kolla/nova-compute/nova.conf",
)
# Directories of further files (oslo.config, find_config_dirs).
NOVA_CONF_DIRS = ("/etc/nova/nova.conf.d", "/etc/nova/nova-compute.conf.d")
# Files from which the boot loader takes the kernel's command line.
BOOT_FILES = (
    "/etc/default/grub",
    # Of the Ansible role nova_accel.host.iommu; it is read after the first.
    "/etc/default/grub.d/nova-accel.cfg",
    "/etc/kernel/cmdline",
)
MOUNTS = "/proc/self/mountinfo"
# A kilobyte and more for each processor.
PROCESSORS = "/proc/cpuinfo"
# libvirt's description of each QEMU (src/qemu/qemu_capabilities.c).
QEMU_CAPABILITIES = "/var/cache/libvirt/qemu/capabilities"
MODPROBE = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
MODULES_LOAD = ("/etc/modules-load.d", "/usr/lib/modules-load.d")
# Directories of DKMS: module, version, kernel for which it was built.
DKMS = "/var/lib/dkms"
VFIO_NODES = "/dev/vfio"
STATE_DIR = "/var/lib/nova/accel"
NVSWITCHES = "/proc/driver/nvidia-nvswitch/devices"

_FILES = allowed_paths.NOVA.files | {
    *NOVA_CONF,
    *BOOT_FILES,
    PROCESSORS,
    "/proc/self",
    "/proc/driver/nvidia/version",
    "/etc/os-release",
    "/etc/modules",
    "/usr/lib/os-release",
    "/usr/lib/nvidia/sriov-manage",
    "/usr/share/nvidia/nvswitch/fabricmanager.cfg",
    "/run/.containerenv",
    "/run/host/container-manager",
    "/run/systemd/container",
    "/run/udev/control",
    "/.dockerenv",
    "/opt/xilinx/xrt/version.json",
    "/dev/iommu",
    "/dev/kvm",
    "/dev/nvidiactl",
    # Half a kilobyte for each claim of a server.
    f"{STATE_DIR}/book.json",
}
_TREES = (
    *allowed_paths.NOVA.trees,
    *NOVA_CONF_DIRS,
    *MODPROBE,
    *MODULES_LOAD,
    VFIO_NODES,
    STATE_DIR,
    NVSWITCHES,
    QEMU_CAPABILITIES,
    "/etc/mdevctl.d",
)
# Units of systemd, libraries whose link has their version, firmware.
_PATTERNS = re.compile(
    r"/(etc|usr/lib|lib)/systemd/system/[\w@.-]+(/[\w@.-]+)?"
    r"|/usr/lib(64|/[\w-]+-linux-gnu)?/lib(virt|nvidia-ml)\.so\.\d+"
    r"|(/usr)?/lib/firmware/qat_\w+\.bin(\.\w+)?"
    r"|/proc/\d+(/mountinfo|/limits)?"
    # Module, version, and what that directory has: a kernel, or the link
    # to its source.  Not the key that signs modules, mok.key.
    r"|/var/lib/dkms(/(?!mok)[\w.+-]+){0,3}"
)
# Directories of these patterns.
_ABOVE = (
    "/etc/systemd/system/",
    "/lib/firmware/",
    "/lib/systemd/system/",
    "/usr/lib/firmware/",
    "/usr/lib/systemd/system/",
    "/usr/lib64/",
    "/usr/lib/x86_64-linux-gnu/",
    "/usr/lib/aarch64-linux-gnu/",
)

_BOOT_VARIABLE = re.compile(r"\s*(GRUB_CMDLINE_LINUX\w*)=(.*)")
# Of arch/x86/kernel/cpu/proc.c; all processors have the same.
_ADDRESS_SIZES = "address sizes"
_MOUNT_POINTS = re.compile(
    r"/|/sys|/dev(/vfio)?|/run/udev|(/usr)?/lib/modules|/var/lib/nova(/.*)?"
)
# Mount point and options are the fifth and sixth field.
_MOUNT_FIELDS = 6
_QEMU_LINE = re.compile(
    r"\s*<(emulator|version|package)>"
    r"|\s*<flag name='(acpi-generic-initiator|iommufd)'/>"
)
# Options of nova.conf by section; of the section nova_accel all.
_OPTIONS = {
    "DEFAULT": {
        "compute_driver",
        "config_source",
        "pci_alias",
        "pci_passthrough_whitelist",
        "state_path",
    },
    "accel": {"driver"},
    "pci": {"alias", "device_spec", "passthrough_whitelist"},
    "devices": {"enabled_mdev_types", "enabled_vgpu_types"},
    "libvirt": {
        "virt_type",
        "live_migration_permit_post_copy",
        "num_pcie_ports",
    },
    "filter_scheduler": {
        "available_filters",
        "enabled_filters",
        "weight_classes",
    },
    "scheduler": {"max_placement_results"},
}
# Of each type in [devices] enabled_mdev_types.
_MDEV_SECTION, _MDEV_OPTION = "mdev_", "device_addresses"
_ASSIGNMENT = re.compile(r"([^=:]*)[=:]")
_OWN_SECTION = re.compile(r"nova[_-]?acc?el\w*")
_SECRET = re.compile(r"pass|secret|token|key|credential", re.IGNORECASE)


def _select_boot_lines(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if match := _BOOT_VARIABLE.fullmatch(line):
            words = "".join(
                allowed_paths.select_arguments([match[2].strip("\"' ")])
            )
            yield f"{match[1]}={words}"


def _select_address_sizes(lines: list[str]) -> Iterator[str]:
    yield from [x for x in lines if x.startswith(_ADDRESS_SIZES)][:1]


def _select_mounts(lines: list[str]) -> Iterator[str]:
    """Yield mount point, options and file system of each line.

    Of the fields in proc(5) no other one is needed, and a source may name
    a server.
    """
    for line in lines:
        fields, _, rest = line.partition(" - ")
        *_, point, options = ["", "", *fields.split()[:_MOUNT_FIELDS]]
        if _MOUNT_POINTS.fullmatch(point):
            kind = rest.split(" ")[0]
            yield f"0 0 0:0 / {point} {options} - {kind} none rw"


def _select_qemu_lines(lines: list[str]) -> Iterator[str]:
    yield from filter(_QEMU_LINE.match, lines)


def split_option(line: str) -> tuple[str, str]:
    """Return name and value of a line of nova.conf; no name for others.

    The first ``=`` or ``:`` ends the name, and quotation marks around the
    value are no part of it (``oslo_config.iniparser``).
    """
    if line.startswith(("#", ";", "[")):
        return "", ""
    match = _ASSIGNMENT.match(line)
    if match is None:
        return "", ""
    value = line[match.end() :].strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return match[1].strip(), value


def _select_options(lines: list[str]) -> Iterator[str]:
    section, is_selected = "DEFAULT", False
    for line in lines:
        if line.startswith("["):
            section, is_selected = line.strip().strip("[]"), False
            yield f"[{section}]"
        elif line[:1].isspace():
            if is_selected and line.strip():
                yield line
        elif name := split_option(line)[0]:
            is_own = _OWN_SECTION.fullmatch(section) is not None
            is_mdev = section.startswith(_MDEV_SECTION)
            is_selected = (
                name in _OPTIONS.get(section, ())
                or (is_mdev and name == _MDEV_OPTION)
                or (is_own and not _SECRET.search(name))
            )
            if is_selected:
                yield line
            elif is_own:
                yield f"{name} ="


#: Those of nova-compute, and those of checks.
ALL = allowed_paths.AllowedPaths(
    files=_FILES,
    trees=_TREES,
    further=_PATTERNS,
    above=_ABOVE,
    large=re.compile(
        rf"{allowed_paths.NOVA.large.pattern}|{STATE_DIR}/book\.json"
        rf"|{QEMU_CAPABILITIES}/.*|{PROCESSORS}|/proc/.*/mountinfo",
        re.S,
    ),
    reducers=(
        (
            re.compile(
                r"/etc/nova/.+|/etc/kolla/nova-compute/nova\.conf", re.S
            ),
            _select_options,
        ),
        (
            re.compile(rf"{KERNEL_ARGUMENTS}|/etc/kernel/cmdline"),
            allowed_paths.select_arguments,
        ),
        (re.compile(r"/etc/default/grub(\.d/.*)?"), _select_boot_lines),
        (re.compile(PROCESSORS), _select_address_sizes),
        (re.compile(r"/proc/\w+/mountinfo"), _select_mounts),
        (re.compile(rf"{QEMU_CAPABILITIES}/[\w.-]+"), _select_qemu_lines),
    ),
)
