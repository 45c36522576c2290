# SPDX-License-Identifier: Apache-2.0
"""Checks of nova.conf on compute hosts and scheduler hosts."""

from collections.abc import Iterator

from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.cli import assigned_functions
from nova_accel.config import conf_options, policy
from nova_accel.discovery import service_start
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import (
    Observation,
    fail,
    note,
    unknown,
    warn,
)
from nova_accel.doctor.sources import misspellings
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
_SECTION = conf_options.GROUP.name
# Section of config_source in the documentation (``config_source``).
_SOURCE = "accel"
# Options whose errors have a check of their own.
_OWN_CHECKS = (
    policy.OPTION,
    service_start.MDEV_TYPES,
    service_start.PCI_SPEC,
)
# Checks of what nova-compute itself checks and logs when it starts.
START_CHECKS = frozenset(
    f"nova.{name}"
    for name in ("settings", "device-spec", "mdev-types", "pci-spec", "driver")
)
_MIN_PORTS = 8


def is_set_up(host: _Host) -> bool:
    """Return whether nova.conf activates nova-accel, or has its options."""
    sections = {section for section, _ in host.options}
    return (
        host.option("DEFAULT", "compute_driver") == _DRIVER
        or _SOURCE in host.option("DEFAULT", "config_source")
        or not sections.isdisjoint((_SECTION, _SOURCE))
    )


@AREA.check(
    "driver",
    why="Nova uses its own driver, and no accelerator is reported",
    remedy=remedies.set_option("DEFAULT", f"compute_driver = {_DRIVER}"),
    ansible="nova_accel",
)
def check_driver(host: _Host) -> _Results:
    """nova.conf activates nova-accel."""
    driver = host.option("DEFAULT", "compute_driver")
    if host.nova_conf and not is_set_up(host):
        yield note("nova.conf does not activate nova-accel", host.nova_conf)
    elif driver and driver != _DRIVER:
        yield warn(f"compute_driver is {driver}", host.nova_conf)
    if host.option("DEFAULT", "config_source"):
        for text in host.source_errors:
            yield fail(
                text,
                host.nova_conf,
                remedy=remedies.set_option(_SOURCE, f"driver = {_SECTION}"),
            )


@AREA.check(
    "options",
    why="the option is ignored",
    remedy="correct the name: admin/configuration lists all options",
)
def check_options(host: _Host) -> _Results:
    """Each option of [nova_accel] exists."""
    yield from _report_names(host, is_section=False)


@AREA.check(
    "sections",
    why="the section is ignored",
    remedy=f"write [{_SECTION}]",
)
def check_sections(host: _Host) -> _Results:
    """No section is a misspelling of nova-accel's."""
    yield from _report_names(host, is_section=True)


def _report_names(host: _Host, is_section: bool) -> _Results:
    """Yield the misspelt sections, or options."""
    sections = host.list_sections()
    for problem in misspellings.find(sections, _SECTION, conf_options.NAMES):
        if problem.where.endswith("]") is is_section:
            path = problem.where.partition(" [")[0]
            yield warn(f"{problem.where}: {problem.reason}", path)


def _find_start_errors(host: _Host) -> Iterator[errors.ConfigurationError]:
    """Yield the errors at which nova-compute does not start.

    :raises UnreadableError: this user may not read nova.conf.
    """
    is_active = is_set_up(host)
    if not host.nova_conf:
        return
    try:
        options, settings = host.parse_conf()
        _ = host.named_drivers  # nova-compute starts with all of them
    except errors.ConfigurationError as error:
        yield error
        return
    if is_active:
        service_start.register(options)
        yield from service_start.find_conflicts(
            options,
            host.reader,
            host.state,
            settings.rules,
            assigned_functions.list_matches,
        )


def _report_start_errors(host: _Host, *names: str) -> _Results:
    """Yield the errors of some options; of all others without names."""
    for error in _find_start_errors(host):
        is_own = error.option in names
        if is_own or (not names and error.option not in _OWN_CHECKS):
            yield fail(str(error), host.nova_conf)


@AREA.check(
    "settings",
    why="nova-compute does not start, or does so without nova-accel",
    remedy="correct the value, then\nsystemctl restart nova-compute",
)
def check_settings(host: _Host) -> _Results:
    """nova-compute starts with the options of [nova_accel]."""
    yield from _report_start_errors(host)


@AREA.check(
    "device-spec",
    why="nova-compute does not start",
    remedy="one JSON object in each line, as device_spec ="
    ' {"address": "0000:41:*", "use": "off"}',
)
def check_device_spec(host: _Host) -> _Results:
    """Each line of [nova_accel] device_spec is valid."""
    yield from _report_start_errors(host, policy.OPTION)


@AREA.check(
    "mdev-types",
    why="Nova and nova-accel would both assign the same vGPUs:"
    " nova-compute does not start",
    remedy="remove enabled_mdev_types (old name: enabled_vgpu_types) from"
    ' [devices], or leave the cards to Nova: a line with "use": "off" in'
    " [nova_accel] device_spec",
    ansible="nova_accel",
)
def check_mdev_types(host: _Host) -> _Results:
    """Nova's own vGPUs are not those of nova-accel."""
    yield from _report_start_errors(host, service_start.MDEV_TYPES)
    value = host.option("devices", "enabled_mdev_types")
    rules = host.rules
    if not value or not is_set_up(host) or rules is None:
        return
    # Cards without VFs have no types yet.
    if not any(parent.types for parent in host.reader.mdev_parents()) and any(
        _is_offered(host, rules, card) for card in host.cards
    ):
        yield warn(
            f"[devices] enabled_mdev_types = {value}: no card has a type"
            " now; with one of these nova-compute does not start",
            host.nova_conf,
        )


@AREA.check(
    "pci-spec",
    why="Nova and nova-accel would both assign the same function:"
    " nova-compute does not start",
    remedy="remove the line from [pci] device_spec (old names of the option:"
    " passthrough_whitelist, pci_passthrough_whitelist), or leave the device"
    ' to Nova: a line with "use": "off" in [nova_accel] device_spec',
    ansible="nova_accel",
)
def check_pci_spec(host: _Host) -> _Results:
    """Nova's own device_spec matches no accelerator."""
    refused = [*_report_start_errors(host, service_start.PCI_SPEC)]
    yield from refused
    rules = host.rules
    if not is_set_up(host) or rules is None:
        return
    for line in host.options.get(("pci", "device_spec"), ()):
        try:
            matches = assigned_functions.list_matches(line, host.reader)
        except errors.ConfigurationError as error:
            yield unknown(
                f"{error.option} = {line} can't be read: {error.hint}",
                host.nova_conf,
                remedy="correct the line: nova-compute refuses it, too",
            )
            continue
        if any(
            f"{service_start.PCI_SPEC} = {line}:" in r.text for r in refused
        ):
            continue
        for function in matches:
            if _is_offered(host, rules, function):
                yield warn(
                    f"[pci] device_spec = {line} matches {function.address},"
                    " which nova-accel will offer in another mode or with"
                    " another driver",
                    host.nova_conf,
                )
                break


@AREA.check(
    "pci-alias",
    why="a flavor with the alias finds no host, or none of these devices",
    remedy="remove the alias (old name of the option: pci_alias), and request"
    " the device with a flavor of `openstack accel flavor create`; or leave"
    ' the device to Nova: a line with "use": "off" in [nova_accel]'
    " device_spec, and one in [pci] device_spec",
)
def check_pci_alias(host: _Host) -> _Results:
    """No alias of Nova waits for devices that nova-accel offers."""
    aliases = host.options.get(("pci", "alias"), ())
    if not is_set_up(host) or not aliases:
        return
    lines = host.options.get(("pci", "device_spec"), ())
    for text in service_start.find_idle_aliases(
        aliases,
        lines,
        host.reader,
        host.state,
        assigned_functions.list_matches,
    ):
        yield warn(text, host.nova_conf)


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
    if value.lower() in ("true", "yes", "on", "1") and is_set_up(host):
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
    if value not in ("", "kvm") and is_set_up(host):
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


@SCHEDULER.check(
    "capture",
    why="each server with accelerators costs one query of Placement more, and"
    " hosts are not weighed for servers without",
    remedy="install the release of nova-accel for this release of Nova",
)
def check_capture(host: _Host) -> _Results:
    """nova-accel knows the method that asks for allocation candidates."""
    yield from _check_method(host, "capture")


@SCHEDULER.check(
    "choices",
    why="of a flavor with several profiles only the first is given",
    remedy="install the release of nova-accel for this release of Nova",
)
def check_choices(host: _Host) -> _Results:
    """nova-accel knows the method that selects the host of a server."""
    yield from _check_method(host, "choices")


def _check_method(host: _Host, name: str) -> _Results:
    """Warn if a method of nova-scheduler can't be wrapped."""
    if _FILTER in _words(host, "enabled_filters") and name in host.unwrapped:
        yield warn(host.unwrapped[name], host.nova_conf)
