# SPDX-License-Identifier: Apache-2.0
"""Card modes at start: VF counts, mixed sizes, services."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.discovery import plugin
from nova_accel.host.execute import action_executor
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci, providers
from virt_hooks.guest import connection
from virt_hooks.spawn import host_access, ownership

LOG = logging.getLogger(__name__)

_Planned = Mapping[str, Sequence[actions.Action]]


class CardModeSetter:
    """Sets cards to the modes that drivers plan; a reboot loses the modes.

    A card that can't be set is logged as an error, and is tried again in
    the next pass unless the attempt itself removes something from the
    host. Other cards and the service are not affected.
    """

    def __init__(
        self,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.DeviceRules,
        executor: action_executor.Executor,
        locks: host_access.DeviceLocks,
        read_host: Callable[[], host_reader.HostReader],
    ) -> None:
        self._drivers = drivers
        self._rules = rules
        self._executor = executor
        self._locks = locks
        self._read_host = read_host
        #: The last error that was logged, by card.
        self._logged: dict[str, str] = {}
        #: Actions that failed, by card; those that remove something are
        #: not retried before a restart.
        self._refused: dict[str, tuple[actions.Action, ...]] = {}
        self._failed: dict[str, tuple[actions.Action, ...]] = {}
        self._retries_failed = True
        #: Whether the last pass saw every card in its mode.
        self.is_complete = True

    def set_modes(
        self,
        root: providers.ProviderRoot | None,
        read_running: Callable[[], connection.HostdevUse],
        read_assigned: Callable[[], Iterable[model.Slot] | None],
        retries_failed: bool = True,
    ) -> bool:
        """Set every card to its mode; return whether one was changed.

        The host is not read if policy has no rule. A card is skipped if a
        running guest has a part of it, or if its lock is held.

        :param root: this compute node, None before it is known.
        :param read_running: returns the hostdevs of running guests; called
            only if a card is to be changed.
        :param read_assigned: returns the slots of this host's servers,
            running or not: nothing is removed from a card with such a
            slot, and a whole card stays as it is. None if not all slots
            are known: nothing is removed from any card.
        :param retries_failed: retry actions that have failed before.
        """
        self.is_complete, self._retries_failed = True, retries_failed
        if self._rules == policy.DeviceRules():
            return False
        is_changed = False
        host = self._read_host()
        for name, driver in self._drivers.items():
            due = self._plan(name, driver, host)
            if not due:
                continue
            self.is_complete = False
            try:
                used = _cards_of(read_running().functions, host)
            except Exception as error:  # libvirt's, or the kernel's
                self._log_once("running guests", repr(error))
                continue
            self._logged.pop("running guests", None)
            for card in due:
                if card in used:
                    self._log_once(card, "a running guest has a part of it")
                    continue
                is_changed |= self._set_mode(
                    name, driver, root, card, read_assigned
                )
        return is_changed

    def _plan(
        self, name: str, driver: plugin.Driver, host: host_reader.HostReader
    ) -> _Planned:
        """Return the actions that a driver plans, by card."""
        planned: dict[str, list[actions.Action]] = {}
        try:
            for action in driver.plan_arrange(host, self._rules):
                card = _card_of(_target(action), host)
                planned.setdefault(card, []).append(action)
        except Exception as error:  # a vendor's driver, or the kernel
            self._log_once(f"cards of driver {name}", _reason(error))
            self.is_complete = False
            return {}
        self._logged.pop(f"cards of driver {name}", None)
        return planned

    def _set_mode(
        self,
        name: str,
        driver: plugin.Driver,
        root: providers.ProviderRoot | None,
        card: str,
        read_assigned: Callable[[], Iterable[model.Slot] | None],
    ) -> bool:
        key = ownership.provider_of(root, card)
        with self._locks.try_hold(key) as is_locked:
            if not is_locked:
                return False
            # A spawn may have changed the card between plan and lock.
            host = self._read_host()
            due = self._plan(name, driver, host).get(card, ())
            assigned = read_assigned()
            if assigned is None and any(map(_removes_vfs, due)):
                return False
            if due and _is_in_use(card, key, due, assigned or (), host):
                self._log_once(card, "a server of this host has a part of it")
                return False
            if due and self._is_refused(card, tuple(due)):
                return False
            try:
                self._executor.apply_all(due)
            except Exception as error:  # the kernel, or the daemon
                is_own = isinstance(error, errors.AcceleratorError)
                reason = str(error) if is_own else repr(error)
                self._failed[card] = tuple(due)
                if any(map(_removes_vfs, due)):
                    # The attempt itself removes something from the host.
                    self._refused[card] = tuple(due)
                    reason += "; repair that, and restart nova-compute"
                self._log_once(card, reason)
                return False
            for notes in (self._logged, self._refused, self._failed):
                notes.pop(card, None)
            return bool(due)

    def _is_refused(self, card: str, due: tuple[actions.Action, ...]) -> bool:
        """Return whether the same actions failed, and are not retried now."""
        return self._refused.get(card) == due or (
            not self._retries_failed and self._failed.get(card) == due
        )

    def _log_once(self, where: str, reason: str) -> None:
        """Log why a card is not in its mode unless the reason is the same."""
        if self._logged.get(where) == reason:
            return
        self._logged[where] = reason
        LOG.error(
            "%s: not in the mode that [nova_accel] device_spec asks for: %s",
            where,
            reason,
        )


def _removes_vfs(action: actions.Action) -> bool:
    """Return whether an action removes what a server may have.

    The kernel changes a count of VFs by way of 0. A port that is assigned
    to a VF is removed from the PF.
    """
    if isinstance(action, actions.SetVfCount):
        return action.before > 0
    return isinstance(action, actions.SetPort | actions.SetServices)


def _is_in_use(
    card: str,
    provider: str,
    due: Iterable[actions.Action],
    assigned: Iterable[model.Slot],
    host: host_reader.HostReader,
) -> bool:
    """Return whether a server has a part of a card that would be removed.

    VFs that do not exist, as after a reboot, can't be removed.
    """
    slots = tuple(assigned)
    if any(slot.identifier == card for slot in slots):
        return True
    return any(map(_removes_vfs, due)) and any(
        _card_of(slot.identifier, host) == card
        if pci.is_address(slot.identifier)
        else slot.provider == provider
        for slot in slots
    )


def _target(action: actions.Action) -> str:
    """Return the function, or the mdev parent, that an action changes."""
    match action:
        case (
            actions.CreateInstance(gpu=target)
            | actions.DestroyInstance(gpu=target)
            | actions.SetMixedSizes(gpu=target)
            | actions.SetMigMode(gpu=target)
        ):
            return target
        case (
            actions.CreateMdev(parent=target)
            | actions.RemoveMdev(parent=target)
        ):
            return target
        case actions.SetVgpuParams(target=target):
            return target
        case actions.ProgramRegion(card=target) | actions.SetPort(card=target):
            return target
    return action.function


def _card_of(name: str, host: host_reader.HostReader) -> str:
    """Return the PF of a VF, and any other name as it is."""
    function = host.function(name)
    if function is None or function.physfn is None:
        return name
    return str(function.physfn)


def _cards_of(
    names: Iterable[str], host: host_reader.HostReader
) -> frozenset[str]:
    return frozenset(_card_of(name, host) for name in names)


def _reason(error: Exception) -> str:
    if isinstance(error, errors.AcceleratorError):
        return str(error)
    return f"{error!r}; report it to the author of the driver"
