# SPDX-License-Identifier: Apache-2.0
"""Checks of kernel drivers: bound, blacklisted, signed, built."""

from collections.abc import Iterator

from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.host import host_paths
from nova_accel.host.sysfs import allowed_paths, modules

AREA = host_checks.Area("drv", page="troubleshooting", is_of_devices=True)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

# Drivers of displays that keep a card from servers, by vendor.
_WRONG = {
    checked_host.NVIDIA: ("nouveau", "nova_core", "NovaCore", "nvidiafb"),
    checked_host.AMD: ("radeon", "radeonfb"),
}
_NEEDED = (
    *("nvidia", "nvidia_vgpu_vfio", "vfio_pci", "vfio", "mdev", "gim", "xe"),
    *("qat_4xxx", "intel_qat", "dfl_pci", "xclmgmt", "xocl"),
)
_VFIO_PCI = ("vfio-pci", "vfio_pci")
_OUT_OF_TREE = ("nvidia", "gim", "xclmgmt", "xocl")
# Of drivers of accelerators, as packages call them.
_DKMS_MODULES = (
    *("nvidia", "amdgpu", "gim", "i915", "intel-i915", "xe"),
    *("qat", "dfl", "xrt", "habanalabs"),
)
_NO_HEADERS = ": the kernel's headers are not installed"
_SECURE_BOOT = checked_host.CheckedHost.sys(
    "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)
_LOCKDOWN = checked_host.CheckedHost.sys("kernel/security/lockdown")


@AREA.check(
    "wrong",
    why="the driver of a display holds the card, so that neither vGPUs nor"
    " passthrough work",
    remedy=remedies.blacklist("nouveau"),
    ansible="blacklist",
)
def check_wrong(host: _Host) -> _Results:
    """No driver of displays has a card for guests."""
    for card in host.cards:
        if card.driver in _WRONG.get(card.vendor, ()):
            yield fail(
                f"{card.address} is bound to {card.driver}",
                host.path(card, "driver"),
                remedy=remedies.blacklist(card.driver or ""),
            )


@AREA.check(
    "blacklist",
    why="nouveau takes the cards at the next start, before NVIDIA's driver",
    remedy=remedies.blacklist("nouveau"),
    ansible="blacklist",
    technology="nvidia",
)
def check_blacklist(host: _Host) -> _Results:
    """Nouveau is blacklisted on a host with NVIDIA cards."""
    has_files = any(map(host.names, host_paths.MODPROBE))
    cards = host.cards_of(checked_host.NVIDIA)
    if cards and has_files and "nouveau" not in host.blacklist:
        yield warn("nouveau is not blacklisted", host_paths.MODPROBE[0])


@AREA.check(
    "blacklisted",
    why="the module is not loaded at the next start",
    remedy="remove the line, then\n" + remedies.REBUILD,
    ansible="blacklist",
)
def check_blacklisted(host: _Host) -> _Results:
    """No module that accelerators need is blacklisted."""
    for module in _NEEDED:
        if path := host.blacklist.get(module, ""):
            yield warn(f"{module} is blacklisted", path)


@AREA.check(
    "override",
    why="the function changes its driver the next time that it is bound",
    remedy="write an empty line to driver_override of the function, or bind"
    " it to the driver named there",
)
def check_override(host: _Host) -> _Results:
    """Each driver_override names the bound driver."""
    for function in host.functions.values():
        if function not in host.cards:
            continue
        name = host.attribute(function, "driver_override")
        if name not in ("", "(null)", function.driver or ""):
            yield warn(
                f"{function.address} is bound to"
                f" {function.driver or 'no driver'}, and driver_override"
                f" names {name}",
                host.path(function, "driver_override"),
            )


@AREA.check(
    "vfio-ids",
    why="vfio-pci takes the card at the next start, and its vGPUs or VFs"
    " vanish",
    remedy="remove the ids of the card from the line, then\n"
    + remedies.REBUILD,
    ansible="vfio",
)
def check_vfio_ids(host: _Host) -> _Results:
    """vfio-pci claims no card that another driver has."""
    for path, ids in _vfio_ids(host):
        for card in host.cards:
            name = f"{card.vendor}:{card.product}"
            if name in ids and card.driver and not card.is_vfio_bound:
                yield warn(
                    f"vfio-pci claims {name}, and {card.address} is bound to"
                    f" {card.driver}",
                    path,
                )


def _vfio_ids(host: _Host) -> Iterator[tuple[str, str]]:
    for line in host.modprobe_lines:
        if line.words[0] == "options" and line.words[1] in _VFIO_PCI:
            yield line.path, " ".join(line.words[2:])
    for name in _VFIO_PCI:
        yield allowed_paths.KERNEL_ARGUMENTS, host.argument(f"{name}.ids")


def _built_modules(host: _Host, release: str) -> dict[str, str]:
    """Return the directories of modules outside of the kernel, by module."""
    top = f"{allowed_paths.KERNEL_MODULES}/{release}"
    return {
        name.partition(".ko")[0].replace("-", "_"): f"{top}/{place}"
        for place in modules.OUT_OF_TREE
        for name in host.names(f"{top}/{place}")
        if ".ko" in name
    }


@AREA.check(
    "kernel",
    why="the module is missing in the kernel that runs",
    remedy=f"{remedies.HEADERS}\ndkms autoinstall",
    ansible="nvidia_vgpu_host",
)
def check_kernel(host: _Host) -> _Results:
    """Modules outside of the kernel are built for the kernel that runs."""
    running = host.release
    releases = host.names(allowed_paths.KERNEL_MODULES)
    if running not in releases:
        return
    present = _built_modules(host, running)
    for release in releases:
        others = _built_modules(host, release) if release != running else {}
        for module in _OUT_OF_TREE:
            if (
                module in others
                and module not in present
                and not host.is_loaded(module)
            ):
                yield fail(
                    f"{module} is built for {release}, and {running} runs",
                    others[module],
                    allowed_paths.KERNEL_RELEASE,
                )


@AREA.check(
    "headers",
    why="DKMS can't build the module again after an update",
    remedy=remedies.HEADERS,
    ansible="nvidia_vgpu_host",
)
def check_headers(host: _Host) -> _Results:
    """Headers of the kernel are installed where DKMS builds modules."""
    top = f"{allowed_paths.KERNEL_MODULES}/{host.release}"
    if host.names(f"{top}/updates/dkms") and not host.exists(f"{top}/build"):
        yield warn("the kernel's headers are not installed", f"{top}/build")


@AREA.check(
    "dkms",
    why="no module of the driver is there for the kernel that runs, so the"
    " driver has no card",
    remedy=f"{remedies.HEADERS}\ndkms autoinstall",
)
def check_dkms(host: _Host) -> _Results:
    """DKMS has built its modules for the kernel that runs."""
    build = f"{allowed_paths.KERNEL_MODULES}/{host.release}/build"
    cause = "" if host.exists(build) else _NO_HEADERS
    for module in host.names(host_paths.DKMS):
        if not module.startswith(_DKMS_MODULES):
            continue
        top = f"{host_paths.DKMS}/{module}"
        kernels = {
            version: host.names(f"{top}/{version}")
            for version in host.names(top)
        }
        # A version has its source; other names are links to what was built.
        versions = [v for v, names in kernels.items() if "source" in names]
        if versions and not any(
            host.release in kernels[version] for version in versions
        ):
            yield fail(
                f"{module} {', '.join(versions)} is not built for"
                f" {host.release}{cause}",
                f"{top}/{versions[-1]}",
            )


def _lockdown_level(host: _Host) -> str:
    """Return the level of lockdown, empty if it is off or unknown."""
    text = host.text(_LOCKDOWN)
    levels = ("integrity", "confidentiality")
    return next((level for level in levels if f"[{level}]" in text), "")


@AREA.check(
    "secure-boot",
    why="the kernel refuses modules without a signature that it accepts",
    remedy="mokutil --import /var/lib/dkms/mok.pub\n"
    "reboot  # and enrol the key in the firmware's menu",
)
def check_secure_boot(host: _Host) -> _Results:
    """Built modules are loaded under Secure Boot and lockdown."""
    is_secure = host.text(_SECURE_BOOT).endswith("\x01")
    level = _lockdown_level(host)
    if not (is_secure or level):
        return
    cause, path = (
        ("Secure Boot", _SECURE_BOOT)
        if is_secure
        else (f"lockdown={level}", _LOCKDOWN)
    )
    present = _built_modules(host, host.release)
    for module in _OUT_OF_TREE:
        is_needed = module in present and host.lists_modules
        if is_needed and not host.is_loaded(module):
            yield warn(
                f"{module} is installed and not loaded under {cause}",
                present[module],
                path,
            )


@AREA.check(
    "unsigned",
    why="the module is refused as soon as Secure Boot or lockdown is on",
    remedy="sign it, or let DKMS do it (/etc/dkms/framework.conf):\n"
    "kmodsign sha512 KEY CERTIFICATE MODULE",
)
def check_unsigned(host: _Host) -> _Results:
    """Loaded modules are signed."""
    for module in _OUT_OF_TREE:
        path = host.sys("module", module, "taint")
        if "E" in host.text(path):
            yield note(f"{module} is not signed", path)


@AREA.check(
    "lockdown",
    why="root can't read kernel memory then: tools of vendors that use"
    " /dev/mem fail",
    remedy="nothing for nova-accel; see kernel_lockdown(7) for the tools",
)
def check_lockdown(host: _Host) -> _Results:
    """The kernel is not locked down."""
    if level := _lockdown_level(host):
        yield note(f"the kernel is locked down: {level}", _LOCKDOWN)
