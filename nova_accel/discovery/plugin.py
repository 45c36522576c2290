# SPDX-License-Identifier: Apache-2.0
"""Protocol of vendor drivers, and the loader of entry points."""

import argparse
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, domains

GROUP = "nova_accel.drivers"
# Who can tell a host's domains: functions of an address, or of None for
# the host's own, that return ``domains.Domain`` and raise DomainsError.
DOMAINS_GROUP = "nova_accel.domains"

# Further commands of ``nova-accel``, by name.
COMMANDS_GROUP = "nova_accel.commands"

ReadDomains = Callable[[str | None], Iterable[domains.Domain]]

# Asked in this order: the first driver that describes a function keeps it.
# Drivers that are not named here come between, in the order of their names.
_FIRST = (
    "nvidia_mdev",
    "nvidia_vfio",
    "intel_sriov",
    "amd_mxgpu",
    "qat",
    "dfl",
    "alveo",
    "mdev",
)
_LAST = ("pci_vf", "pci_passthrough", "noop")


@runtime_checkable
class Driver(Protocol):
    """One technology: describes its devices and plans their changes.

    A driver never writes: it returns actions, which the library carries
    out with the right privileges, checks, and takes back on failure.
    """

    name: str

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterable[model.Device | model.Problem]:
        """Yield the devices of this technology that the host shows.

        A device that can be read in part is yielded with what is known,
        beside a problem for the rest.

        :param host: the host's kernel files, read through a cache.
        :param rules: what the operator allows.
        :param taken: addresses that another driver has described.
        :raises UnreadableError: nothing of this technology can be read;
            the other drivers go on.
        """
        ...

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that make a claim's partition."""
        ...

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that unmake a claim's partition."""
        ...

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return what brings devices into the mode that policy asks for.

        For modes that a reboot loses: VF counts, mixed sizes. Nothing is
        planned for a device that policy does not name, that is in the
        mode already, or that something uses.

        :raises UnreadableError: nothing of this technology can be read.
        """
        ...


@runtime_checkable
class Command(Protocol):
    """A command of ``nova-accel`` that another package brings."""

    def add(self, subparsers: Any) -> None:
        """Add the parser of the command, by its own name.

        :param subparsers: of ``argparse.ArgumentParser.add_subparsers``.
        """
        ...

    def run(self, arguments: argparse.Namespace) -> str:
        """Carry it out, and return what to print.

        :raises AcceleratorError: it can't be done as it was asked for.
        """
        ...


def installed() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of all installed drivers, by name."""
    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: point for point in points}


def load(wanted: Iterable[str] = ()) -> Mapping[str, Driver]:
    """Return drivers by name, in the order in which they are asked.

    :param wanted: the names to load; none means every installed driver.
    :raises ConfigurationError: a name is not installed, or its entry
        point can't be loaded or is no driver.
    """
    points = installed()
    chosen = tuple(wanted) or tuple(points)
    return {
        name: _load_one(name, points) for name in sorted(chosen, key=_order)
    }


def _order(name: str) -> tuple[int, str]:
    if name in _FIRST:
        return _FIRST.index(name), ""
    if name in _LAST:
        return len(_FIRST) + 1 + _LAST.index(name), ""
    return len(_FIRST), name


def _load_one(
    name: str, points: Mapping[str, importlib.metadata.EntryPoint]
) -> Driver:
    option = "[nova_accel] drivers"
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise errors.ConfigurationError(
            option, name, f"no such driver is installed; known are {known}"
        )
    try:
        driver = points[name].load()()
    except Exception as error:  # a vendor's own code: it may raise anything
        raise errors.ConfigurationError(
            option,
            name,
            f"the driver's entry point {points[name].value} fails to load"
            f" ({error!r}); mend or remove its package",
        ) from error
    if not isinstance(driver, Driver):
        raise errors.ConfigurationError(
            option,
            name,
            f"{points[name].value} is no driver: it must have the methods"
            " of nova_accel.discovery.plugin.Driver",
        )
    return driver


def read_domains(uri: str | None = None) -> tuple[domains.Domain, ...]:
    """Return the domains of this host, as every installed source has them.

    :param uri: the hypervisor's address, as libvirt spells it; None for
        the usual one of this host.
    :raises DomainsError: no source is installed, or one of them can't
        tell: then nothing is known, for what is missing looks unused.
    """
    points = importlib.metadata.entry_points(group=DOMAINS_GROUP)
    if not points:
        raise errors.DomainsError(
            "this host", f"nothing is installed in {DOMAINS_GROUP}"
        )
    found: list[domains.Domain] = []
    for point in sorted(points, key=lambda point: point.name):
        try:
            read: ReadDomains = point.load()
        except (ImportError, AttributeError) as error:
            raise errors.DomainsError(
                point.name,
                f"{point.value} can't be loaded ({error}); install what it"
                " needs on this host",
            ) from error
        found += read(uri)
    return tuple(found)


class CommandError(errors.AcceleratorError):
    """A command that another package brings can't be used.

    :param name: of the command.
    :param reason: why, and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"command {name}: {reason}", name, reason)
        self.name = name
        self.reason = reason


def commands() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of all installed commands, by name."""
    points = importlib.metadata.entry_points(group=COMMANDS_GROUP)
    return {point.name: point for point in sorted(points, key=_by_name)}


def _by_name(point: importlib.metadata.EntryPoint) -> str:
    return point.name


def load_command(name: str) -> Command:
    """Return an installed command.

    :raises CommandError: its entry point can't be loaded, or is no
        command.
    """
    point = commands()[name]
    try:
        found = point.load()
    except Exception as error:  # another package's own code
        raise CommandError(
            name,
            f"its entry point {point.value} fails to load ({error!r});"
            " install what it needs",
        ) from error
    if not isinstance(found, Command):
        raise CommandError(
            name,
            f"{point.value} is no command: it must have the functions of"
            " nova_accel.discovery.plugin.Command",
        )
    return found
