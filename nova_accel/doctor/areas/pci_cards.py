# SPDX-License-Identifier: Apache-2.0
"""Checks of PCI functions: BARs, buses, links, errors and resets."""

import errno
import re
from collections.abc import Iterator, Sequence

from nova_accel import errors
from nova_accel.claims import card_reset
from nova_accel.config import policy, remedy
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import (
    Observation,
    fail,
    note,
    ok,
    unknown,
    warn,
)
from nova_accel.geometry import address_space
from nova_accel.host import host_paths
from nova_accel.host.sysfs import allowed_paths, attributes
from nova_accel.inventory import wording
from nova_accel.model import pci
from nova_accel.vendors import pci_passthrough
from nova_accel.vendors.common import reset_policy, vf_card

AREA = host_checks.Area("pci", page="other-accelerators", is_of_devices=True)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

# Lines of ``resource`` (drivers/pci/pci-sysfs.c, resource_show): six BARs,
# the ROM, and with SR-IOV the six BARs of all VFs.
_BARS, _VF_BARS = slice(0, 6), slice(7, 13)
# include/linux/ioport.h: IORESOURCE_MEM, IORESOURCE_UNSET.
_MEMORY, _UNSET = 0x200, 0x20000000
_GONE = b"\xff\xff"
_GIB = 1 << 30
# arch/x86/kernel/cpu/proc.c.
_ADDRESS_SIZES = re.compile(r"address sizes\s*: (\d+) bits physical")
_MANY_ERRORS = 1000
# Drivers whose VFs other checks report.
_CHECKED_BY_VENDOR = ("nvidia", "i915", "amdgpu")
# drivers/pci/pci.h: PCIE_LNK_WIDTH_UNKNOWN.
_UNKNOWN_WIDTH = 255
# Start, end and flags of a line of ``resource``.
_RESOURCE = re.compile(r"0x([0-9a-f]{16}) 0x([0-9a-f]{16}) 0x([0-9a-f]{16})")
_MEMORY_REMEDY = (
    'switch on "Above 4G decoding" and a larger MMIO window in the'
    " firmware's setup (HPE: PciResourcePadding=High), or\n"
    + remedies.set_kernel_arguments("pci=realloc")
)


def _sizes(host: _Host, card: pci.PciFunction, lines: slice) -> list[int]:
    """Return the sizes of memory BARs, 0 for one without an address."""
    sizes = []
    for line in host.attribute(card, "resource").splitlines()[lines]:
        match = _RESOURCE.fullmatch(line)
        if match is None:
            continue
        start, end, flags = (int(word, 16) for word in match.groups())
        if flags & _MEMORY:
            is_unset = not start or flags & _UNSET
            sizes.append(0 if is_unset else end - start + 1)
    return sizes


def _lacks_vf_bars(host: _Host, card: pci.PciFunction) -> bool:
    """Return whether no BAR for VFs is left.

    Linux 6.1 clears the line of a BAR without an address
    (drivers/pci/setup-bus.c, reset_resource), so that it looks like one that
    the card does not have. VFs have a BAR at least.
    """
    lines = host.attribute(card, "resource").splitlines()
    return (
        card.total_vfs > 0
        and not card.num_vfs
        and len(lines) >= _VF_BARS.stop
        and any(_sizes(host, card, _BARS))
        and not _sizes(host, card, _VF_BARS)
    )


@AREA.check(
    "bars",
    why="a driver or a guest can't use a card without addresses for its BARs",
    remedy=_MEMORY_REMEDY,
)
def check_bars(host: _Host) -> _Results:
    """Each memory BAR of a card has an address."""
    for card in host.cards:
        if 0 in _sizes(host, card, _BARS):
            yield fail(
                f"a BAR of {card.address} has no address",
                host.path(card, "resource"),
            )


@AREA.check(
    "vf-bars",
    why='the kernel refuses VFs then: "not enough MMIO resources for SR-IOV"',
    remedy="switch on SR-IOV in the firmware's setup; " + _MEMORY_REMEDY,
)
def check_vf_bars(host: _Host) -> _Results:
    """Each memory BAR for VFs has an address."""
    for card in host.cards:
        sizes = _sizes(host, card, _VF_BARS)
        if 0 in sizes or _lacks_vf_bars(host, card):
            yield fail(
                f"{card.address} can't have its {card.total_vfs} VFs: their"
                " BARs have no addresses",
                host.path(card, "resource"),
            )


@AREA.check(
    "large-bars",
    why="a guest sees a card without BARs, and no error, if its address space"
    " has no room for them",
    remedy="see what is printed for the cards",
)
def check_large_bars(host: _Host) -> _Results:
    """BARs of whole cards fit into the address space of any guest."""
    whole = [card for card in host.cards if card.is_vfio_bound]
    large = [c for c in whole if max(_sizes(host, c, _BARS), default=0) > _GIB]
    demand = address_space.sum_functions(
        host.attribute(card, "resource") for card in large
    )
    needs = [
        address_space.AddressSpace(memory=0, has_uefi=has_uefi)
        for has_uefi in (True, False)
    ]
    uefi, bios = (space.choose_bits(demand) for space in needs)
    if uefi <= address_space.DEFAULT_BITS:
        return
    text = host.text(host_paths.PROCESSORS)
    match = _ADDRESS_SIZES.match(text)
    bits = int(match[1]) if match else 0
    least = needs[0].find_least_bits(demand)
    observe = warn if 0 < bits < least else note
    yield observe(
        f"BARs of {wording.count_of(len(large), 'whole card')},"
        f" {address_space.format_size(demand.total)}, need {uefi} address bits"
        f" in a guest with UEFI, {bios} with BIOS; the processor has"
        f" {bits or 'an unknown number'}",
        *(host.path(card, "resource") for card in large),
        host_paths.PROCESSORS,
        remedy=_explain_room(bits, least, uefi),
    )


def _explain_room(bits: int, least: int, enough: int) -> str:
    """Return what to do about BARs that take many address bits."""
    if 0 < bits < least:
        return "give a guest fewer of these cards, or boot it without UEFI"
    return (
        "nothing for the guests of flavors without hw:maxphysaddr_mode: they"
        " get the bits that their BARs need (libvirt 8.7); to choose hosts by"
        " their bits, set hw:maxphysaddr_mode=emulate and"
        f" hw:maxphysaddr_bits={min(enough, bits or enough)} in the flavor"
        " (--os-compute-api-version 2.85: Nova 34 refuses them in later ones)"
    )


@AREA.check(
    "vf-bus",
    why='the kernel refuses VFs then: "bus number out of range"',
    remedy="switch on ARI in the firmware's setup, or\n"
    + remedies.set_kernel_arguments("pci=assign-busses"),
)
def check_vf_bus(host: _Host) -> _Results:
    """The bus numbers of all VFs are behind the card's bridge."""
    for card in host.cards:
        offset = host.count(card, "sriov_offset")
        stride = host.count(card, "sriov_stride")
        bridge = host.path(card, "../subordinate_bus_number")
        last_bus = attributes.parse_number(host.text(bridge))
        if not card.total_vfs or offset is None or last_bus is None:
            continue
        first = card.address.slot << 3 | card.address.function
        last = first + offset + (stride or 0) * (card.total_vfs - 1)
        if card.address.bus + (last >> 8) > last_bus:
            yield fail(
                f"the last VF of {card.address} is on bus"
                f" {card.address.bus + (last >> 8):02x}, behind the last one"
                f" of its bridge ({last_bus:02x})",
                host.path(card, "sriov_offset"),
                bridge,
            )


@AREA.check(
    "sriov",
    why="without SR-IOV the device can't be shared by guests",
    remedy="see what is printed for each device",
    technology="qat",
)
def check_sriov(host: _Host) -> _Results:
    """Each QAT device has SR-IOV."""
    for card in host.qats:
        if card.total_vfs or card.is_vfio_bound:
            continue
        path = host.path(card, "sriov_totalvfs")
        if vf_card.has_sriov_files(card, host.reader):
            yield warn(
                f"{card.driver or 'the kernel'} allows no VFs of"
                f" {card.address}",
                path,
                remedy="look for its driver's reason in the kernel's log",
            )
            continue
        step = remedy.EnableSriov(function=str(card.address))
        yield warn(f"{card.address} has no SR-IOV", path, remedy=str(step))


@AREA.check(
    "autoprobe",
    why="the host's driver takes each new VF, and releases it only when a"
    " guest starts",
    remedy="write 0 to sriov_drivers_autoprobe of the card before its VFs"
    " are made",
)
def check_autoprobe(host: _Host) -> _Results:
    """The host's drivers do not take VFs that guests get."""
    for card in host.cards:
        busy = [vf for vf in host.vfs(card) if vf.driver == f"{card.driver}vf"]
        if busy and host.attribute(card, "sriov_drivers_autoprobe") == "1":
            yield note(
                f"{card.address} has {wording.count_of(len(busy), 'VF')} with"
                " the host's driver"
                f" {busy[0].driver}",
                host.path(card, "sriov_drivers_autoprobe"),
            )


@AREA.check(
    "link-width",
    why="the card has a part of its bandwidth only",
    remedy="reseat the card, or put it into a slot with more lanes",
)
def check_link_width(host: _Host) -> _Results:
    """Each card uses all lanes of its link."""
    for card in host.cards:
        width = host.count(card, "current_link_width") or 0
        most = host.count(card, "max_link_width") or 0
        if 0 < width < most < _UNKNOWN_WIDTH:
            yield warn(
                f"{card.address} uses {width} of {most} lanes",
                host.path(card, "current_link_width"),
                host.path(card, "max_link_width"),
            )


@AREA.check(
    "link-speed",
    why="the card has a part of its bandwidth only; idle GPUs slow their"
    " link down, too",
    remedy="read the value again under load; then reseat the card",
)
def check_link_speed(host: _Host) -> _Results:
    """Each card uses the full speed of its link."""
    for card in host.cards:
        speed = host.attribute(card, "current_link_speed").split(" ")[0]
        most = host.attribute(card, "max_link_speed").split(" ")[0]
        if speed and "Unknown" not in (speed, most) and speed != most:
            yield note(
                f"{card.address} runs at {speed} of {most} GT/s",
                host.path(card, "current_link_speed"),
            )


def _error_count(host: _Host, card: pci.PciFunction, name: str) -> int:
    last = host.attribute(card, name).rpartition(" ")[2]
    return attributes.parse_number(last) or 0


@AREA.check(
    "aer-fatal",
    why="the card may lose data; a device is set aside for errors that the"
    " kernel counts at the card itself, not at its port",
    remedy="replace or reseat the card, then\nnova-accel heal ADDRESS",
)
def check_aer_fatal(host: _Host) -> _Results:
    """No card had a fatal PCIe error since the start."""
    for card in host.cards:
        if count := _error_count(host, card, "aer_dev_fatal"):
            yield fail(
                f"{card.address} had"
                f" {wording.count_of(count, 'fatal PCIe error')}",
                host.path(card, "aer_dev_fatal"),
            )
            continue
        # Linux 6.1 counts a fatal error at the root port only: it does not
        # read the card then (drivers/pci/pcie/aer.c,
        # aer_get_device_error_info).
        path = host.path(card, "../aer_rootport_total_err_fatal")
        if (total := host.text(path)) not in ("", "0"):
            yield warn(
                f"the root port of {card.address} counted fatal PCIe errors:"
                f" {total}",
                path,
                remedy="look for the card in the kernel's log (journalctl -k"
                " --grep AER), then replace or reseat it",
            )


@AREA.check(
    "aer-nonfatal",
    why="requests of the card were lost",
    remedy="look for the card in the kernel's log (journalctl -k --grep AER)",
)
def check_aer_nonfatal(host: _Host) -> _Results:
    """No card had an uncorrected PCIe error since the start."""
    for card in host.cards:
        if count := _error_count(host, card, "aer_dev_nonfatal"):
            yield note(
                f"{card.address} had"
                f" {wording.count_of(count, 'uncorrected PCIe error')}",
                host.path(card, "aer_dev_nonfatal"),
            )


@AREA.check(
    "aer-correctable",
    why="many corrected errors announce a bad contact",
    remedy="reseat the card or its riser",
)
def check_aer_correctable(host: _Host) -> _Results:
    """No card has many corrected PCIe errors."""
    for card in host.cards:
        count = _error_count(host, card, "aer_dev_correctable")
        if count > _MANY_ERRORS:
            yield note(
                f"{card.address} had {count} corrected PCIe errors",
                host.path(card, "aer_dev_correctable"),
            )


@AREA.check(
    "reset",
    why="a function that can't be reset keeps the data of its last guest",
    remedy="see what is printed for each function",
    page="scrub",
)
def check_reset(host: _Host) -> _Results:
    """Each card can be reset between guests."""
    rules = host.device_rules
    whole: set[pci.PciAddress] = set()
    for functions in pci_passthrough.list_assigned(host.reader, rules):
        whole.update(function.address for function in functions)
        yield _describe_reset(host, functions, rules)
    for card in host.cards:
        path = host.path(card, "reset_method")
        if card.address in whole:
            continue
        if host.exists(path) and not host.text(path):
            yield fail(
                f"{card.address} has no reset method",
                path,
                remedy=_enable_resets(card.address),
            )
        if card.driver not in _CHECKED_BY_VENDOR:
            yield from _check_vf_resets(host, card, rules)


def _describe_reset(
    host: _Host,
    functions: tuple[pci.PciFunction, ...],
    rules: policy.DeviceRules,
) -> Observation:
    """Return how the functions of one guest are reset after it."""
    first = functions[0]
    path = host.path(first, "reset_method")
    rule = rules.rule(str(first.address), first.vendor, first.product)
    buses = reset_policy.read(functions, host.reader)
    if rule.scrub == policy.NONE:
        return note(
            f"{first.address} is not reset between guests, as its line of"
            " device_spec says",
            path,
            remedy="none, if nothing of it remains for the next guest",
        )
    if reason := reset_policy.explain_unreset(buses):
        return fail(
            f"{first.address}: {reason}",
            path,
            remedy=_explain_remedy(buses, rule, first),
        )
    if doubt := reset_policy.explain_unknown(buses):
        return unknown(f"{first.address}: {doubt}", path)
    if first.driver and not first.is_vfio_bound and not rule.scrub:
        return note(
            f"{first.address} is reset by vfio-pci only, which reports no"
            f" failure: the host's driver {first.driver} has it back after"
            " each guest",
            path,
            remedy="bind it to vfio-pci at boot, or write"
            ' "scrub": "reset" into its line of device_spec',
        )
    return ok(
        f"{first.address} is reset between guests: "
        + card_reset.describe(buses),
        path,
    )


def _explain_remedy(
    buses: Sequence[card_reset.BusFunctions],
    rule: policy.Rule,
    function: pci.PciFunction,
    card: pci.PciFunction | None = None,
) -> str:
    """Return what to do about a function that can't be reset.

    :param card: the PF of a VF.
    """
    bus = card_reset.find_unresettable(buses)
    if bus is not None and reset_policy.is_disabled(buses):
        return _enable_resets(bus.functions[0].address)
    line = reset_policy.offering_line(rule, function, card)
    return f"use another card; or offer it without a reset: {line}"


def _enable_resets(address: pci.PciAddress | str) -> str:
    """Return how the resets of a function are enabled that were disabled."""
    step = remedy.WriteAttribute(
        function=str(address), name="reset_method", value="default"
    )
    return str(step)


def _check_vf_resets(
    host: _Host, card: pci.PciFunction, rules: policy.DeviceRules
) -> _Results:
    rule = rules.rule(str(card.address), card.vendor, card.product)
    for vf in host.vfs(card):
        buses = reset_policy.read((vf,), host.reader)
        reason = reset_policy.explain_unreset(buses)
        if reason and not rule.is_offered_unreset:
            yield fail(
                f"{vf.address}: {reason}",
                host.path(vf, "reset_method"),
                remedy=_explain_remedy(buses, rule, vf, card),
            )


@AREA.check(
    "presence",
    why="the card has left its bus",
    remedy="switch the host off and on again; then reseat the card",
)
def check_presence(host: _Host) -> _Results:
    """Each card answers on its bus."""
    for card in host.cards:
        path = host.path(card, "config")
        if _read_head(host, path)[:2] == _GONE:
            yield fail(f"{card.address} does not answer", path)
    for address in sorted(host.reader.unknown()):
        path = host.sys("bus/pci/devices", address, "vendor")
        if host.text(path) == "0xffff":
            yield fail(f"{address} does not answer", path)
    for address, path in sorted(host.reader.late().items()):
        yield fail(f"{address} does not answer: a read of it hangs", path)


def _read_head(host: _Host, path: str) -> bytes:
    """Return the ids in configuration space, empty without an answer."""
    try:
        return host.reader.files.head(path) if host.exists(path) else b""
    except errors.UnreadableError as error:
        if error.number != errno.ETIMEDOUT:
            raise
        return b""


@AREA.check(
    "power",
    why="a guest that starts has to wait for the card, or does not get it",
    remedy=remedies.write_attribute("power/control", "on"),
)
def check_power(host: _Host) -> _Results:
    """No card is without power."""
    for card in host.cards:
        if host.attribute(card, "power_state") == "D3cold":
            yield note(
                f"{card.address} is in D3cold", host.path(card, "power_state")
            )


@AREA.check(
    "numa",
    why="guests can't be placed near a card whose node is unknown",
    remedy="update the firmware, or switch on ACPI SRAT / NUMA nodes per"
    " socket in its setup",
)
def check_numa(host: _Host) -> _Results:
    """Each card has a NUMA node on a host with several."""
    if not host.exists(host.sys("devices/system/node/node1")):
        return
    for card in host.cards:
        if card.numa_node is None:
            yield note(
                f"{card.address} has no NUMA node",
                host.path(card, "numa_node"),
            )


@AREA.check(
    "msi",
    why="VFIO and most VFs need MSI interrupts",
    remedy=remedies.write_attribute("msi_bus", "1"),
)
def check_msi(host: _Host) -> _Results:
    """MSI interrupts are on."""
    if "nomsi" in host.argument("pci").split(","):
        yield fail(
            "the kernel was started with pci=nomsi",
            allowed_paths.KERNEL_ARGUMENTS,
            remedy=remedies.remove_kernel_arguments("pci=nomsi"),
        )
    for card in host.cards:
        if host.attribute(card, "msi_bus") == "0":
            yield fail(
                f"{card.address} has no MSI", host.path(card, "msi_bus")
            )
