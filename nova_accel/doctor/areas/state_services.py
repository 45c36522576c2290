# SPDX-License-Identifier: Apache-2.0
"""Checks of the state directory, services, packages, and before a removal."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator

from nova_accel import errors
from nova_accel.config import conf_options
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.areas import nova_options
from nova_accel.doctor.host_checks import (
    Observation,
    fail,
    note,
    unknown,
    warn,
)
from nova_accel.host import host_paths
from nova_accel.host.state import claims_file, device_notes, notes, state_dir
from nova_accel.inventory import wording
from nova_accel.model import json_codec

STATE = host_checks.Area("state", page="recovery")
SERVICES = host_checks.Area("svc", page="troubleshooting")
PACKAGES = host_checks.Area(
    "py", page="troubleshooting", role=host_checks.Role.EVERY
)
REMOVAL = host_checks.Area(
    "remove", page="remove", role=host_checks.Role.REMOVAL
)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_SECTION = conf_options.GROUP.name
# The unit that `placement-sync run --print-unit` prints.
_DAEMON = "placement-sync"


_USABLE = "do what the text says, then\nsystemctl restart nova-compute"


def _claims(host: _Host) -> str:
    """Return the path of the claims."""
    return f"{host.state_dir}/{claims_file.NAME}"


def _list_notes(
    host: _Host,
    directory: str,
    level: Callable[..., Observation],
    text: str,
    command: str = "",
) -> _Results:
    """Yield the addresses of the notes in a directory.

    :param level: ``note`` or ``warn``.
    :param command: ends these states; empty for the remedy of the check.
    """
    path = f"{host.state_dir}/{directory}"
    if addresses := notes.parse_file_names(host.names(path)):
        remedy = f"{command} {' '.join(addresses)}" if command else ""
        listed = ", ".join(_describe(host, path, each) for each in addresses)
        yield level(f"{text}: {listed}", path, remedy=remedy)


def _describe(host: _Host, path: str, address: str) -> str:
    """Return an address with the reason of its note, if that can be read."""
    reason = ""
    with contextlib.suppress(ValueError, errors.UnreadableError):
        note = json.loads(host.text(f"{path}/{notes.file_name(address)}"))
        reason = note.get("reason", "") if isinstance(note, dict) else ""
    return f"{address} ({reason})" if reason else address


@STATE.check(
    "directory",
    why="nova-compute can't store faults, drains and claims",
    remedy=f"runuser -u nova -- mkdir -m 0750 {host_paths.STATE_DIR}",
    ansible="nova_accel",
)
def check_directory(host: _Host) -> _Results:
    """The state directory can be used."""
    if not nova_options.is_set_up(host):
        return
    path = host.state_dir
    if host.is_this_machine:
        with contextlib.suppress(errors.ConfigurationError):
            obstacle = state_dir.find_obstacle(host.parse_conf()[1])
            if obstacle:
                yield fail(str(obstacle), path, remedy=_USABLE)
                return
    is_default = host.option(_SECTION, "state_dir") in ("", path)
    has_parent = host.is_this_machine or host.exists(os.path.dirname(path))
    if has_parent and is_default and not host.exists(path):
        yield note(
            f"{path} is missing",
            path,
            remedy=f"runuser -u nova -- mkdir -m 0750 {path}",
        )


@STATE.check(
    "faulted",
    why="these devices are offered to no server",
    remedy="after their repair:\nnova-accel heal ADDRESS",
)
def check_faulted(host: _Host) -> _Results:
    """No device is set aside."""
    yield from _list_notes(
        host,
        "faulted",
        warn,
        "set aside",
        "after the repair:\nnova-accel heal",
    )


@STATE.check(
    "drained",
    why="these devices get no new server",
    remedy="nova-accel undrain ADDRESS",
)
def check_drained(host: _Host) -> _Results:
    """No device is drained."""
    yield from _list_notes(
        host, "drained", note, "drained", "nova-accel undrain"
    )


@STATE.check(
    "scrubbing",
    why="the device was in use while nova-compute ended; its next start"
    " repeats the scrub",
    remedy="systemctl restart nova-compute",
)
def check_scrubbing(host: _Host) -> _Results:
    """No scrub was interrupted."""
    yield from _list_notes(host, "scrubbing", note, "being scrubbed")


@STATE.check(
    "unreleased",
    why="the partitions of a deleted server still exist",
    remedy="systemctl restart nova-compute  # its log has the cause",
)
def check_unreleased(host: _Host) -> _Results:
    """All partitions of deleted servers were released."""
    yield from _list_notes(host, "unreleased", note, "not released")


@SERVICES.check(
    "libvirt",
    why="Nova can't start guests",
    remedy="systemctl enable --now virtqemud.socket ||"
    " systemctl enable --now libvirtd",
)
def check_libvirt(host: _Host) -> _Results:
    """libvirt is active where it is installed."""
    names = ("virtqemud", "libvirtd")
    units = [name for name in names if host.unit(name)]
    sockets = [
        f"/etc/systemd/system/sockets.target.wants/{name}.socket"
        for name in names
    ]
    if units and host.lists_services and not any(map(host.exists, sockets)):
        if not any(map(host.is_active, names)):
            yield warn("libvirt is not active", host.service(units[0]))


@SERVICES.check(
    "udev",
    why="nova-accel then sees the kernel's events only, and libvirt misses"
    " new devices",
    remedy="systemctl start systemd-udevd",
)
def check_udev(host: _Host) -> _Results:
    """udev is active."""
    name = "systemd-udevd"
    is_known = host.lists_services and not host.is_container
    path = "/run/udev/control"
    if is_known and host.unit(name) and not host.exists(path):
        yield warn("udev is not active", path)


@SERVICES.check(
    "mdevctl",
    why="mdevctl makes these devices at each start, and nova-accel removes"
    " devices that no server has",
    remedy="mdevctl undefine --uuid UUID",
)
def check_mdevctl(host: _Host) -> _Results:
    """mdevctl starts no mediated devices with the host."""
    top = "/etc/mdevctl.d"
    for parent in host.names(top):
        if parent == "scripts.d":
            continue
        started = [
            uuid
            for uuid in host.names(f"{top}/{parent}")
            if _is_started(host.text(f"{top}/{parent}/{uuid}"))
        ]
        if started:
            yield note(
                f"mdevctl defines devices on {parent}",
                f"{top}/{parent}",
                remedy="\n".join(
                    f"mdevctl undefine --parent {parent} --uuid {uuid}"
                    for uuid in started
                ),
            )


def _is_started(definition: str) -> bool:
    """Return whether a definition of mdevctl may start with the host.

    Those of adopted mdevs do not: an undo of the adoption needs them.
    """
    try:
        return bool(json_codec.loads(definition)["start"] != "manual")
    except (ValueError, TypeError, KeyError):
        return True


@PACKAGES.check(
    "packages",
    why="services of Nova do not start, nova-api checks no extra spec, or"
    " commands fail",
    remedy="remove the other distribution (as phx-filters, which installs a"
    " package filters), or install nova-accel in an environment of its own",
)
def check_packages(host: _Host) -> _Results:
    """Python finds nova-accel's own packages under their names."""
    for package in host.packages:
        yield (warn if package.is_own else fail)(str(package))


@REMOVAL.check(
    "claims",
    why="servers on this host still have accelerators",
    remedy="nova-accel remove plan\nnova-accel remove apply --move cold",
)
def check_claims(host: _Host) -> _Results:
    """No server of this host has an accelerator."""
    if mdevs := host.names(host.sys("bus/mdev/devices")):
        yield fail(
            f"this host has {wording.count_of(len(mdevs), 'mediated device')}",
            host.sys("bus/mdev/devices"),
        )
    for function in host.functions.values():
        path = host.path(function, "nvidia/current_vgpu_type")
        if function.physfn and host.text(path) not in ("", "0"):
            yield fail(f"{function.address} has a vGPU type", path)


@REMOVAL.check(
    "functions",
    why="a hard reboot under Nova's own driver takes their whole functions"
    " away, without an error",
    remedy="nova-accel remove apply --move cold",
)
def check_functions(host: _Host) -> _Results:
    """No server of this host has a whole function."""
    path = _claims(host)
    text = host.text(path)
    if not text:
        return
    try:
        recorded = claims_file.parse(text)
    except ValueError as error:
        yield unknown(
            f"the servers' claims can't be read: {error}",
            path,
            remedy="systemctl restart nova-compute",
        )
        return
    if servers := claims_file.list_function_servers(recorded.claims):
        yield fail(
            f"these servers have whole functions: {', '.join(servers)}", path
        )


@REMOVAL.check(
    "offered",
    why="stock Nova goes on to offer them, and starts servers without their"
    " devices",
    remedy="systemctl stop nova-compute\nnova-accel remove apply",
)
def check_offered(host: _Host) -> _Results:
    """The devices of this host are closed in Placement."""
    path = f"{host.state_dir}/drained"
    has_left = any(
        device_notes.LEAVING in host.text(f"{path}/{name}")
        for name in host.names(path)
    )
    claims = _claims(host)
    if host.exists(claims) and not has_left:
        yield fail(
            "Placement may still offer the devices of this host", claims, path
        )


@REMOVAL.check(
    "driver",
    why="nova-compute does not start without the package",
    remedy=remedies.set_option(
        "DEFAULT", "compute_driver = libvirt.LibvirtDriver"
    ),
)
def check_removed_driver(host: _Host) -> _Results:
    """compute_driver is Nova's."""
    driver = host.option("DEFAULT", "compute_driver")
    if driver.startswith("accel."):
        yield fail(f"compute_driver is {driver}", host.nova_conf)


@REMOVAL.check(
    "filters",
    why="nova-scheduler does not start without the package",
    remedy="remove nova-accel's names from available_filters,"
    " enabled_filters and weight_classes",
)
def check_removed_filters(host: _Host) -> _Results:
    """The scheduler's options do not name nova-accel."""
    for (section, name), values in host.options.items():
        if section == "filter_scheduler" and "ccelerator" in str(values):
            yield fail(
                f"[{section}] {name} names nova-accel's filter or weigher",
                host.nova_conf,
            )


@REMOVAL.check(
    "section",
    why="Nova ignores the section, and a later installation would use it",
    remedy=f"remove [{_SECTION}] from nova.conf",
)
def check_removed_section(host: _Host) -> _Results:
    """nova.conf has no section of nova-accel."""
    if any(section == _SECTION for section, _ in host.options):
        yield note(f"[{_SECTION}] exists", host.nova_conf)


@REMOVAL.check(
    "units",
    why="a service of a removed package fails, and a running one creates the"
    " resource providers again",
    remedy=f"systemctl disable --now {_DAEMON}",
)
def check_removed_units(host: _Host) -> _Results:
    """No unit of nova-accel is installed."""
    if path := host.unit(_DAEMON):
        yield note(
            f"{path} exists",
            path,
            remedy=f"systemctl disable --now {_DAEMON} && rm {path}",
        )


@REMOVAL.check(
    "state",
    why="a later installation would use the faults and drains of today",
    remedy=f"runuser -u nova -- rm -r {host_paths.STATE_DIR}",
)
def check_removed_state(host: _Host) -> _Results:
    """The state directory is removed."""
    path = host.state_dir
    if host.exists(path):
        yield note(
            f"{path} exists",
            path,
            remedy=f"runuser -u nova -- rm -r {path}",
        )
