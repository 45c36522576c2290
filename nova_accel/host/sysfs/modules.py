# SPDX-License-Identifier: Apache-2.0
"""Loaded kernel modules, VFIO and IOMMU."""

from collections.abc import Iterable, Iterator

from nova_accel import errors
from nova_accel.host.sysfs import allowed_paths, fs

_MODULES = "/sys/module"
_VFIO_CLASS, _VFIO_CDEV = (6, 1), (6, 6)
_INTEL, _AMD, _ARM = "intel", "amd", "arm"
_INTEL_ARGUMENT = "intel_iommu=on"
# Intel's IOMMU has to be named on the command line of most kernels; AMD's and
# ARM's are on where the firmware describes them.
# Directories, and the beginning of a name in them that only hosts of a maker
# have: ACPI tables, IOMMUs, modules, a processor's registers (Documentation/
# ABI/testing/sysfs-devices-system-cpu).
_SIGNS = (
    ("/sys/firmware/acpi/tables", "DMAR", _INTEL),
    ("/sys/firmware/acpi/tables", "IVRS", _AMD),
    ("/sys/firmware/acpi/tables", "IORT", _ARM),
    ("/sys/class/iommu", "dmar", _INTEL),
    ("/sys/class/iommu", "ivhd", _AMD),
    ("/sys/class/iommu", "smmu", _ARM),
    ("/sys/module", "kvm_intel", _INTEL),
    ("/sys/module", "kvm_amd", _AMD),
    ("/sys/devices/system/cpu/cpu0/regs/identification", "midr_el1", _ARM),
)
# Ends of kernel releases: of EL, and of Debian and Ubuntu.
_ARM_RELEASES = ("aarch64", "-arm64")
_FIRMWARE = {
    _INTEL: "VT-d",
    _AMD: "AMD-Vi (IOMMU)",
    _ARM: "the SMMU",
}
# Directories of modules that are not the kernel's own, below that of a
# kernel release.
OUT_OF_TREE = ("updates/dkms", "extra", "updates", "weak-updates")


def read_parameter(files: fs.Files, module: str, name: str) -> str:
    """Return a parameter of a loaded module, empty if it can't be read.

    A module that is not loaded has none, whatever modprobe.d sets.
    """
    try:
        return files.text(f"{_MODULES}/{module}/parameters/{name}").strip()
    except errors.UnreadableError:
        return ""


def is_loaded(files: fs.Files, module: str, other: str) -> bool | None:
    """Return whether a module is loaded, None if these files don't show it.

    :param other: a module that is loaded on this host: where the kernel's
        list of modules lacks it, the list is no complete one.
    """
    try:
        loaded = files.names(_MODULES)
    except errors.UnreadableError:
        return None
    if module in loaded:
        return True
    return False if other in loaded else None


def has_driver(files: fs.Files, name: str) -> bool:
    """Return whether the kernel has loaded a driver of PCI functions."""
    try:
        return name in files.names("/sys/bus/pci/drivers")
    except errors.UnreadableError:
        return False


def is_installed(files: fs.Files, module: str) -> bool:
    """Return whether the file of a module out of the kernel's tree exists.

    It is looked for where DKMS and vendors' packages install modules for
    the running kernel.
    """
    try:
        release = files.text(allowed_paths.KERNEL_RELEASE).strip()
    except errors.UnreadableError:
        return False
    top = f"{allowed_paths.KERNEL_MODULES}/{release}"
    for place in OUT_OF_TREE:
        try:
            names = files.names(f"{top}/{place}")
        except errors.UnreadableError:
            continue
        for name in names:
            stem = name.partition(".ko")[0].replace("-", "_")
            if ".ko" in name and stem == module:
                return True
    return False


def read_versions(files: fs.Files, modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the loaded modules among these, by name.

    A module without a version, such as the kernel's own, has an empty
    one. Built-in modules without parameters seem not loaded.
    """
    versions = {}
    for module in modules:
        try:
            names = files.names(f"{_MODULES}/{module}")
        except errors.UnreadableError:
            continue
        versions[module] = ""
        if "version" in names:
            versions[module] = _text(files, f"{_MODULES}/{module}/version")
    return versions


def read_vfio_version(files: fs.Files) -> tuple[int, ...]:
    """Return the Linux release whose VFIO a kernel has at least, or ().

    Distributions add newer VFIO to older kernels: that of EL 9 calls itself
    5.14. Linux 6.1 added the class vfio-dev (drivers/vfio/vfio_main.c), 6.6
    the character devices in it (CONFIG_VFIO_DEVICE_CDEV).
    """
    place = "/sys/class/vfio-dev"
    try:
        names = files.names(place)
    except errors.UnreadableError:
        return ()
    for name in names:
        try:
            if "dev" in files.names(files.resolve(f"{place}/{name}")):
                return _VFIO_CDEV
        except errors.UnreadableError:
            continue
    return _VFIO_CLASS


def explain_iommu(files: fs.Files) -> str:
    """Return how the IOMMU of this host is switched on."""
    maker = _find_maker(files)
    if not maker:
        return (
            "switch the IOMMU on in the firmware, and on a processor of Intel"
            f" on the kernel's command line ({_INTEL_ARGUMENT})"
        )
    text = f"switch {_FIRMWARE[maker]} on in the firmware"
    if missing_argument(files):
        text += f", and write {_INTEL_ARGUMENT} on the kernel's command line"
    return text


def missing_argument(files: fs.Files) -> str:
    """Return the word that the kernel's command line lacks, or ""."""
    if _find_maker(files) != _INTEL:
        return ""
    words = _text(files, allowed_paths.KERNEL_ARGUMENTS).split()
    return "" if _INTEL_ARGUMENT in words else _INTEL_ARGUMENT


def _find_maker(files: fs.Files) -> str:
    """Return the maker of the host's IOMMU, empty if unknown."""
    maker = next(_find_signs(files), "")
    release = _text(files, allowed_paths.KERNEL_RELEASE).strip()
    return maker or (_ARM if release.endswith(_ARM_RELEASES) else "")


def _find_signs(files: fs.Files) -> Iterator[str]:
    for directory, beginning, maker in _SIGNS:
        try:
            names = files.names(directory)
        except errors.UnreadableError:
            continue
        if any(name.startswith(beginning) for name in names):
            yield maker


def has_iommufd(files: fs.Files) -> bool:
    """Return whether a kernel on which VFIO is loaded has IOMMUFD.

    vfio.ko then needs iommufd.ko, which makes the device ``/dev/iommu``
    (drivers/vfio/Makefile, drivers/iommu/iommufd/main.c).
    """
    try:
        return "iommu" in files.names("/sys/class/misc")
    except errors.UnreadableError:
        return False


def _text(files: fs.Files, path: str) -> str:
    try:
        return files.text(path).strip()
    except errors.UnreadableError:
        return ""
