# SPDX-License-Identifier: Apache-2.0
"""Protocol of vendor drivers, and the loader of entry points.

Other packages install drivers as entry points.
"""

import importlib.metadata
from collections.abc import (
    Iterable,
    Mapping,
    Sequence,
)
from typing import Protocol, runtime_checkable

from nova_accel import errors, model
from nova_accel.config import conf, extensions, policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions

GROUP = "nova_accel.drivers"


# Order of the drivers: the first one that describes a function keeps it.
# Drivers not named here come between the two lists, sorted by name.
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
_LAST = ("pci_vf", "pci_passthrough")


@runtime_checkable
class Driver(Protocol):
    """Driver of one technology: describes devices and plans changes.

    A driver never writes. It returns actions; the library applies them
    with the required privileges, verifies them and undoes them on failure.
    """

    name: str

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterable[model.Device | model.Problem]:
        """Yield the devices of this technology on a card.

        It is called for each card of the host when the host is read, and
        for one card when this card is read again: the result must not depend
        on the calls before.

        Yield a partly readable device without the unreadable values, and a
        problem for each of these.

        :param card: cached reader of the kernel files. Its functions, mdev
            parents and mdevs are those of the card; see
            ``HostReader.cards``.
        :param rules: the operator's device_spec lines.
        :param taken: addresses that the drivers before have described on the
            host.
        :raises UnreadableError: nothing of this technology can be read;
            the other drivers are called all the same.
        """
        ...

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that create a claim's partition."""
        ...

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that remove a claim's partition."""
        ...

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return the actions that set the modes configured by policy.

        These are modes that a reboot resets, such as VF counts and mixed
        sizes. No action is planned for a device that policy does not name,
        that is in the mode already, or that is in use.

        :raises UnreadableError: nothing of this technology can be read.
        """
        ...


def list_drivers() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of all installed drivers, by name."""
    return {point.name: point for point in extensions.list_points(GROUP)}


def load(names: Iterable[str] = ()) -> Mapping[str, Driver]:
    """Return drivers by name, in the order in which they are called.

    :param names: the drivers to load; all installed drivers if empty.
    :raises ConfigurationError: a driver is not installed.
    :raises BrokenDriverError: its entry point can't be loaded, or is no
        driver.
    """
    points = list_drivers()
    selected = tuple(names) or tuple(points)
    return {
        name: _load_driver(name, points)
        for name in sorted(selected, key=_rank)
    }


def load_named(settings: conf.Settings) -> Mapping[str, Driver]:
    """Return the drivers of option ``drivers``; see ``load``.

    :raises ConfigurationError: one is not installed; the error has the file
        of the option, and so has BrokenDriverError.
    """
    try:
        return load(settings.drivers)
    except errors.ConfigurationError as error:
        file = settings.files.get("drivers", error.file)
        raise type(error)(
            error.option, error.value, error.hint, file
        ) from error


def _rank(name: str) -> tuple[int, str]:
    """Return the sort key of a driver."""
    if name in _FIRST:
        return _FIRST.index(name), ""
    if name in _LAST:
        return len(_FIRST) + 1 + _LAST.index(name), ""
    return len(_FIRST), name


def _load_driver(
    name: str, points: Mapping[str, importlib.metadata.EntryPoint]
) -> Driver:
    option = "[nova_accel] drivers"
    if name not in points:
        installed = ", ".join(sorted(points)) or "none"
        raise errors.ConfigurationError(
            option, name, f"no such driver is installed; known are {installed}"
        )
    try:
        driver = points[name].load()()
    except Exception as error:  # third-party code may raise anything
        raise errors.BrokenDriverError(
            option,
            name,
            f"the driver's entry point {points[name].value} fails to load"
            f" ({error!r}); repair or remove its package",
        ) from error
    if not isinstance(driver, Driver):
        raise errors.BrokenDriverError(
            option,
            name,
            f"{points[name].value} is no driver: it must have the methods"
            " of nova_accel.discovery.plugin.Driver",
        )
    return driver
