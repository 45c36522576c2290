# SPDX-License-Identifier: Apache-2.0
"""Checks of nova.conf on compute hosts and scheduler hosts."""

from collections.abc import Iterator

from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.config import conf, misspellings, policy
from nova_accel.discovery import nova_devices
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import (
    Observation,
    fail,
    note,
    unknown,
    warn,
)
from nova_accel.host.sysfs import attributes
from nova_accel.model import pci

AREA = host_checks.Area("nova", page="configuration")
SCHEDULER = host_checks.Area(
    "sched", page="scheduling", role=host_checks.Role.SCHEDULER
)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_DRIVER = "accel.AccelLibvirtDriver"
_FILTER = "AcceleratorFilter"
_FILTER_PATH = "filters.accelerator_filter.AcceleratorFilter"
_WEIGHER_PATH = "filters.accelerator_weigher.AcceleratorWeigher"
_SECTION = conf.GROUP.name
_OPTIONS = {o.name for o in (*conf.OPTIONS, *conf.SCHEDULER_OPTIONS)}
_MIN_PORTS = 8


def _is_set_up(host: _Host) -> bool:
    """Return whether nova.conf has the section of nova-accel."""
    return any(section == _SECTION for section, _ in host.options)


@AREA.check(
    "driver",
    why="Nova uses its own driver, and no accelerator is reported",
    remedy=remedies.set_option("DEFAULT", f"compute_driver = {_DRIVER}"),
    ansible="nova_accel",
)
def check_driver(host: _Host) -> _Results:
    """compute_driver is nova-accel's driver where it has options."""
    driver = host.option("DEFAULT", "compute_driver")
    if _is_set_up(host) and driver and driver != _DRIVER:
        yield warn(f"compute_driver is {driver}", host.nova_conf)


@AREA.check(
    "options",
    why="the option is ignored",
    remedy="correct the name: admin/configuration lists all options",
)
def check_options(host: _Host) -> _Results:
    """Each option of [nova_accel] exists."""
    for section, name in host.options:
        if section == _SECTION and name not in _OPTIONS:
            yield warn(
                f"[{section}] {name} is no option of nova-accel",
                host.nova_conf,
            )


@AREA.check(
    "sections",
    why="the section is ignored",
    remedy=f"write [{_SECTION}]",
)
def check_sections(host: _Host) -> _Results:
    """No section is a misspelling of nova-accel's."""
    for section in sorted({section for section, _ in host.options}):
        if section != _SECTION and misspellings.is_similar(section, _SECTION):
            yield warn(f"section [{section}] is ignored", host.nova_conf)


@AREA.check(
    "device-spec",
    why="nova-compute does not start",
    remedy="one JSON object in each line, as device_spec ="
    ' {"address": "0000:41:*", "use": "off"}',
)
def check_device_spec(host: _Host) -> _Results:
    """Each line of [nova_accel] device_spec is valid."""
    try:
        policy.parse_rules(host.options.get((_SECTION, "device_spec"), ()))
    except errors.ConfigurationError as error:
        yield fail(f"{error.option} = {error.value}: {error.hint}")


@AREA.check(
    "mdev-types",
    why="Nova and nova-accel would both assign the same vGPUs",
    remedy="remove enabled_mdev_types (old name: enabled_vgpu_types) from"
    ' [devices], or leave the cards to Nova: a line with "use": "off" in'
    " [nova_accel] device_spec",
    ansible="nova_accel",
)
def check_mdev_types(host: _Host) -> _Results:
    """Nova's own vGPUs are off where nova-accel has options."""
    value = host.option("devices", "enabled_mdev_types")
    rules = host.rules
    if not value or not _is_set_up(host) or rules is None:
        return
    types = set(value.replace(" ", "").split(","))
    parents = [
        host.functions[parent.name]
        for parent in host.reader.mdev_parents()
        if types.intersection(t.type_id for t in parent.types)
        and parent.name in host.functions
    ]
    # Cards without VFs have no types yet.
    if any(_is_offered(host, rules, f) for f in parents or host.cards):
        yield fail(f"[devices] enabled_mdev_types = {value}", host.nova_conf)


@AREA.check(
    "pci-spec",
    why="Nova and nova-accel would both assign the same function",
    remedy="remove the line from [pci] device_spec (old names of the option:"
    " passthrough_whitelist, pci_passthrough_whitelist), or leave the device"
    ' to Nova: a line with "use": "off" in [nova_accel] device_spec',
    ansible="nova_accel",
)
def check_pci_spec(host: _Host) -> _Results:
    """Nova's own device_spec matches no accelerator."""
    rules = host.rules
    if not _is_set_up(host) or rules is None:
        return
    for line in host.options.get(("pci", "device_spec"), ()):
        try:
            matches = nova_devices.list_matches(line, host.reader)
        except errors.ConfigurationError as error:
            yield unknown(
                f"{error.option} = {line} can't be read: {error.hint}",
                host.nova_conf,
                remedy="correct the line: nova-compute refuses it, too",
            )
            continue
        for function in matches:
            if _is_offered(host, rules, function):
                yield fail(
                    f"[pci] device_spec = {line} matches {function.address}",
                    host.nova_conf,
                )
                break


def _is_offered(
    host: _Host, rules: policy.DeviceRules, function: pci.PciFunction
) -> bool:
    """Return whether nova-accel offers a function, or its card, to servers.

    A card that is in another use now may be offered later.
    """
    card = host.functions.get(str(function.physfn), function)
    rule = rules.rule(str(card.address), card.vendor, card.product)
    if rule.use is policy.DeviceUse.OFF:
        return False
    if rule.use is policy.DeviceUse.AUTO or not rule.is_specific:
        return pci_ids.is_candidate(card)
    return True


@AREA.check(
    "post-copy",
    why="Nova documents it as incompatible with vGPUs: a guest's device"
    " memory can't be fetched later",
    remedy=remedies.set_option(
        "libvirt", "live_migration_permit_post_copy = false"
    ),
    ansible="nova_accel",
)
def check_post_copy(host: _Host) -> _Results:
    """Live migration does not switch to post-copy."""
    value = host.option("libvirt", "live_migration_permit_post_copy")
    if value.lower() in ("true", "yes", "on", "1") and _is_set_up(host):
        yield warn(
            f"live_migration_permit_post_copy = {value}", host.nova_conf
        )


@AREA.check(
    "virt-type",
    why="VFIO devices need KVM to be of use",
    remedy=remedies.set_option("libvirt", "virt_type = kvm"),
    ansible="nova_accel",
)
def check_virt_type(host: _Host) -> _Results:
    """Guests use KVM."""
    value = host.option("libvirt", "virt_type")
    if value not in ("", "kvm") and _is_set_up(host):
        yield warn(f"virt_type = {value}", host.nova_conf)


@AREA.check(
    "pcie-ports",
    why="a server gets no more devices while it runs once its ports are used",
    remedy=remedies.set_option("libvirt", "num_pcie_ports = 16"),
    ansible="nova_accel",
)
def check_pcie_ports(host: _Host) -> _Results:
    """Guests have free PCIe ports for hot attach."""
    ports = attributes.parse_number(host.option("libvirt", "num_pcie_ports"))
    if ports and ports < _MIN_PORTS:
        yield note(f"num_pcie_ports = {ports}", host.nova_conf)


def _words(host: _Host, name: str) -> list[str]:
    values = host.options.get(("filter_scheduler", name), ())
    words = ",".join(values).replace(" ", "").split(",")
    return list(filter(None, words))


@SCHEDULER.check(
    "conf",
    why="without its options the scheduler does not use nova-accel",
    remedy="see admin/scheduling for the four lines",
    ansible="nova_accel",
)
def check_scheduler_conf(host: _Host) -> _Results:
    """nova.conf has the section filter_scheduler."""
    sections = {section for section, _ in host.options}
    if host.nova_conf and "filter_scheduler" not in sections:
        yield fail("[filter_scheduler] sets no filters", host.nova_conf)


@SCHEDULER.check(
    "available",
    why="nova-scheduler does not start, or does not have the filter",
    remedy="write into [filter_scheduler]:\n"
    "available_filters = nova.scheduler.filters.all_filters\n"
    f"available_filters = {_FILTER_PATH}",
    ansible="nova_accel",
)
def check_available(host: _Host) -> _Results:
    """nova-accel's filter is available."""
    names = _words(host, "available_filters")
    if _words(host, "enabled_filters") and _FILTER_PATH not in names:
        yield fail(f"available_filters lacks {_FILTER_PATH}", host.nova_conf)


@SCHEDULER.check(
    "enabled",
    why="servers are sent to hosts whose cards have no room for them",
    remedy=f"append {_FILTER} to enabled_filters of [filter_scheduler]",
    ansible="nova_accel",
)
def check_filter(host: _Host) -> _Results:
    """nova-accel's filter is enabled."""
    names = _words(host, "enabled_filters")
    if names and _FILTER not in names:
        yield fail(f"enabled_filters lacks {_FILTER}", host.nova_conf)


@SCHEDULER.check(
    "order",
    why="Nova allocates the first candidate that the last filter leaves",
    remedy=f"put {_FILTER} at the end of enabled_filters",
    ansible="nova_accel",
)
def check_order(host: _Host) -> _Results:
    """nova-accel's filter is the last one."""
    names = _words(host, "enabled_filters")
    if _FILTER in names[:-1]:
        yield warn(f"{names[-1]} follows {_FILTER}", host.nova_conf)


@SCHEDULER.check(
    "weigher",
    why="hosts are not weighed by their free partitions",
    remedy="write into [filter_scheduler]:\nweight_classes ="
    f" nova.scheduler.weights.all_weighers,{_WEIGHER_PATH}",
    ansible="nova_accel",
)
def check_weigher(host: _Host) -> _Results:
    """nova-accel's weigher is enabled."""
    names = _words(host, "weight_classes")
    if _words(host, "enabled_filters") and _WEIGHER_PATH not in names:
        yield note(f"weight_classes lacks {_WEIGHER_PATH}", host.nova_conf)
