# SPDX-License-Identifier: Apache-2.0
"""Checks of firmware and IOMMU."""

from collections.abc import Iterator

from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.host.sysfs import allowed_paths, links, modules
from nova_accel.model import pci
from nova_accel.vendors.common import iommu_group

AREA = host_checks.Area("iommu", page="other-accelerators", is_of_devices=True)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

# Tables with the host's IOMMUs: Intel, AMD, ARM, virtual machines.
_TABLES = ("DMAR", "IVRS", "IORT", "VIOT")
_FIRMWARE = checked_host.CheckedHost.sys("firmware/acpi/tables")
_OFF = frozenset({"intel_iommu=off", "amd_iommu=off", "iommu=off"})
_NO_REMAPPING = frozenset({"intremap=off", "nointremap"})
_TYPE1 = "vfio_iommu_type1"
_VIRTUAL_IOMMU = (
    "give this virtual machine an IOMMU, in libvirt as <iommu model='intel'>"
)


def _lacks_table(host: _Host) -> bool:
    tables = host.names(_FIRMWARE)
    return bool(tables) and not any(
        table.startswith(_TABLES) for table in tables
    )


def _offered(host: _Host) -> Iterator[pci.PciFunction]:
    """Yield the functions that guests get: VFs, and cards without VFs."""
    for card in host.cards:
        vfs = tuple(host.vfs(card))
        yield from vfs or (card,)


@AREA.check(
    "firmware",
    why="without an IOMMU no device can be assigned to a guest",
    remedy="switch on VT-d (Intel), AMD-Vi (AMD) or SMMU (ARM) in the"
    " firmware's setup",
)
def check_firmware(host: _Host) -> _Results:
    """The firmware describes an IOMMU."""
    if host.cards and _lacks_table(host):
        is_virtual = links.is_virtual_machine(host.reader)
        yield fail(
            "the firmware describes no IOMMU",
            _FIRMWARE,
            remedy=_VIRTUAL_IOMMU if is_virtual else "",
        )


def _explain_enabling(host: _Host) -> str:
    """Return the lines that switch the IOMMU of this host on."""
    word = modules.missing_argument(host.reader.files)
    lines = modules.explain_iommu(host.reader.files)
    if word:
        lines += f"\n{remedies.set_kernel_arguments(word)}"
    return lines


@AREA.check(
    "enabled",
    why="a device without an IOMMU group can't be assigned to a guest",
    remedy="switch the IOMMU on in the firmware's setup",
    ansible="iommu",
)
def check_enabled(host: _Host) -> _Results:
    """Each accelerator is in an IOMMU group."""
    if _lacks_table(host):
        return
    for card in host.cards:
        if card.iommu_group is not None:
            continue
        path = host.path(card, "iommu_group")
        if host.link(path):
            continue  # a group of VFIO without an IOMMU: iommu.noiommu
        if host.exists(host.path(card, "mdev_supported_types")):
            yield note(
                f"{card.address} is in no IOMMU group: only its mediated"
                " devices can be assigned",
                path,
            )
        else:
            yield fail(
                f"{card.address} is in no IOMMU group",
                path,
                remedy=_explain_enabling(host),
            )


@AREA.check(
    "off",
    why="the kernel then uses no IOMMU, whatever the firmware offers",
    remedy=remedies.remove_kernel_arguments("intel_iommu=off, iommu=off"),
    ansible="iommu",
)
def check_off(host: _Host) -> _Results:
    """The kernel's command line does not switch the IOMMU off."""
    for word in sorted(_OFF.intersection(host.arguments)):
        yield fail(
            f"the kernel was started with {word}",
            allowed_paths.KERNEL_ARGUMENTS,
        )


@AREA.check(
    "pending",
    why="the running kernel has other arguments than the next start will"
    " have, so that what works now may fail then",
    remedy="reboot",
    ansible="iommu",
)
def check_pending(host: _Host) -> _Results:
    """Arguments in the boot loader's files are those of the kernel."""
    for word, path in host.boot_arguments.items():
        if host.arguments and "iommu" in word and word not in host.arguments:
            yield warn(
                f"{word} takes effect at the next start",
                path,
                allowed_paths.KERNEL_ARGUMENTS,
            )


@AREA.check(
    "group",
    why="VFIO takes a group only if no driver of the host has a part of it"
    ' (QEMU: "group is not viable")',
    remedy="put the card into another slot, or switch on ACS in the"
    " firmware; passthrough of both functions to one guest works, too",
)
def check_group(host: _Host) -> _Results:
    """No driver of the host has a part of an accelerator's IOMMU group."""
    for function in _offered(host):
        siblings = {
            str(other)
            for other in function.group_members
            if (other.bus, other.slot)
            != (function.address.bus, function.address.slot)
        }
        for address in sorted(siblings & host.functions.keys()):
            other = host.functions[address]
            if other in host.cards or iommu_group.is_free(other):
                continue
            path = host.path(other, "driver")
            yield fail(
                f"{function.address} shares IOMMU group"
                f" {function.iommu_group} with {address} ({host.link(path)})",
                path,
            )


@AREA.check(
    "shared",
    why="all functions of a group go to the same guest",
    remedy="put the cards into slots below different root ports, or switch"
    " on ACS in the firmware",
)
def check_shared(host: _Host) -> _Results:
    """Each card has an IOMMU group of its own."""
    groups: dict[int, list[pci.PciFunction]] = {}
    for card in host.cards:
        if card.iommu_group is not None:
            groups.setdefault(card.iommu_group, []).append(card)
    for number, cards in groups.items():
        if len({(c.address.bus, c.address.slot) for c in cards}) > 1:
            names = " and ".join(str(card.address) for card in cards)
            yield note(
                f"{names} share IOMMU group {number}",
                host.path(cards[0], "iommu_group"),
            )


@AREA.check(
    "reserved",
    why="the firmware has memory of its own mapped for the device (RMRR,"
    " IVMD, RMR), and the kernel refuses such a group to guests",
    remedy="look for a firmware setting that drops the mapping, as HPE's"
    " shared memory features, or ask the vendor for a newer firmware",
)
def check_reserved(host: _Host) -> _Results:
    """The firmware maps no memory of its own for an accelerator."""
    for function in _offered(host):
        if iommu_group.is_mapped_by_firmware(function, host.reader):
            path = host.path(function, "iommu_group/reserved_regions")
            yield fail(f"{function.address} has a direct region", path)


@AREA.check(
    "type",
    why="DMA of the host's drivers is not translated; guests are isolated"
    " all the same, since VFIO has its own domain",
    remedy="nothing; iommu.passthrough=0 on the kernel's command line"
    " isolates the host's drivers, too",
)
def check_type(host: _Host) -> _Results:
    """DMA of the host is translated."""
    for card in host.cards:
        path = host.path(card, "iommu_group/type")
        if host.text(path) == "identity":
            yield note(f"{card.address} has an identity domain", path)


@AREA.check(
    "unsafe-interrupts",
    why="a guest can inject interrupts into the host",
    remedy="remove allow_unsafe_interrupts from /etc/modprobe.d, switch on"
    f" interrupt remapping in the firmware, then\n{remedies.REBUILD}\nreboot",
)
def check_unsafe_interrupts(host: _Host) -> _Results:
    """VFIO requires interrupt remapping."""
    if host.parameter(_TYPE1, "allow_unsafe_interrupts") == "Y":
        yield warn(
            "VFIO allows unsafe interrupts",
            host.sys("module", _TYPE1, "parameters/allow_unsafe_interrupts"),
        )


@AREA.check(
    "remapping",
    why="VFIO refuses devices without interrupt remapping",
    remedy=remedies.remove_kernel_arguments("intremap=off, nointremap"),
    ansible="iommu",
)
def check_remapping(host: _Host) -> _Results:
    """The kernel's command line leaves interrupt remapping on."""
    for word in sorted(_NO_REMAPPING.intersection(host.arguments)):
        yield fail(
            f"the kernel was started with {word}",
            allowed_paths.KERNEL_ARGUMENTS,
        )


@AREA.check(
    "noiommu",
    why="a guest with such a device can overwrite the host's memory",
    remedy="remove enable_unsafe_noiommu_mode from /etc/modprobe.d and reboot",
)
def check_noiommu(host: _Host) -> _Results:
    """VFIO makes no groups without an IOMMU."""
    if host.parameter("vfio", "enable_unsafe_noiommu_mode") == "Y":
        yield warn(
            "VFIO makes groups without an IOMMU",
            host.sys("module/vfio/parameters/enable_unsafe_noiommu_mode"),
        )


@AREA.check(
    "acs-override",
    why="the groups claim an isolation that the hardware does not have:"
    " a guest may reach devices of the host or of another guest",
    remedy=remedies.remove_kernel_arguments("pcie_acs_override=..."),
)
def check_acs_override(host: _Host) -> _Results:
    """IOMMU groups are those of the hardware."""
    if value := host.argument("pcie_acs_override"):
        yield warn(
            f"the kernel splits groups (pcie_acs_override={value})",
            allowed_paths.KERNEL_ARGUMENTS,
        )
