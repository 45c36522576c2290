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
from virt_hooks.spawn import device_locks, ownership

LOG = logging.getLogger(__name__)

_Planned = Mapping[str, Sequence[actions.Action]]


class CardModeSetter:
    """Carries out what drivers plan for modes that a reboot loses.

    A card that can't be arranged is an error in the log, and is tried
    again with the next pass, unless the attempt itself takes something
    away from the host; the others and the service go on.
    """

    def __init__(
        self,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.Policy,
        executor: action_executor.Executor,
        locks: device_locks.DeviceLocks,
        look: Callable[[], host_reader.HostReader],
    ) -> None:
        """Use these; ``look`` returns a fresh reader of the host."""
        self._drivers = drivers
        self._rules = rules
        self._executor = executor
        self._locks = locks
        self._look = look
        self._told: dict[str, str] = {}
        self._refused: dict[str, tuple[actions.Action, ...]] = {}
        self._failed: dict[str, tuple[actions.Action, ...]] = {}
        self._is_again = True
        #: Whether the last pass found every card in its mode.
        self.is_settled = True

    def arrange(
        self,
        root: providers.ProviderRoot | None,
        read_running: Callable[[], connection.HostdevUse],
        read_held: Callable[[], Iterable[model.Slot] | None],
        is_again: bool = True,
    ) -> bool:
        """Bring every card into its mode; return whether one was changed.

        Nothing is looked at where policy says nothing. A card of which
        a running guest has a part is left alone, and so is one on which
        somebody works.

        :param root: this compute node, None before it is known.
        :param read_running: what the running guests hold; it is asked
            only if there is something to do.
        :param read_held: the slots that this host's servers hold, running
            or not: of a card with one that is there nothing is taken away,
            and a whole card stays as it is. None: they are not all known,
            and nothing is taken away from any card.
        :param is_again: try what has failed, too.
        """
        self.is_settled, self._is_again = True, is_again
        if self._rules == policy.Policy():
            return False
        is_changed = False
        host = self._look()
        for name, driver in self._drivers.items():
            due = self._plan(name, driver, host)
            if not due:
                continue
            self.is_settled = False
            try:
                used = _cards_of(read_running().functions, host)
            except Exception as error:  # libvirt's, or the kernel's
                self._tell("running guests", repr(error))
                continue
            self._told.pop("running guests", None)
            for card in due:
                if card in used:
                    self._tell(card, "a running guest has a part of it")
                    continue
                is_changed |= self._arrange_card(
                    name, driver, root, card, read_held
                )
        return is_changed

    def _plan(
        self, name: str, driver: plugin.Driver, host: host_reader.HostReader
    ) -> _Planned:
        """Return what a driver plans, by the card it is for."""
        found: dict[str, list[actions.Action]] = {}
        try:
            for action in driver.plan_arrange(host, self._rules):
                card = _card_of(_target(action), host)
                found.setdefault(card, []).append(action)
        except Exception as error:  # a vendor's own code, or the kernel's
            self._tell(f"cards of driver {name}", _reason(error))
            self.is_settled = False
            return {}
        self._told.pop(f"cards of driver {name}", None)
        return found

    def _arrange_card(
        self,
        name: str,
        driver: plugin.Driver,
        root: providers.ProviderRoot | None,
        card: str,
        read_held: Callable[[], Iterable[model.Slot] | None],
    ) -> bool:
        key = ownership.provider_of(root, card)
        with self._locks.try_hold(key) as got:
            if not got:
                return False
            # Anew: a spawn may have come between the plan and the lock.
            host = self._look()
            due = self._plan(name, driver, host).get(card, ())
            held = read_held()
            if held is None and any(map(_takes_away, due)):
                return False
            if due and _is_held(card, key, due, held or (), host):
                self._tell(card, "a server of this host has a part of it")
                return False
            if due and self._is_refused(card, tuple(due)):
                return False
            try:
                self._executor.apply_all(due)
            except errors.AcceleratorError as error:
                reason = _reason(error)
                self._failed[card] = tuple(due)
                if any(map(_takes_away, due)):
                    # The attempt itself takes something from the host.
                    self._refused[card] = tuple(due)
                    reason += "; mend that, and restart nova-compute"
                self._tell(card, reason)
                return False
            for notes in (self._told, self._refused, self._failed):
                notes.pop(card, None)
            return bool(due)

    def _is_refused(self, card: str, due: tuple[actions.Action, ...]) -> bool:
        """Return whether the same has failed, and is not tried now."""
        return self._refused.get(card) == due or (
            not self._is_again and self._failed.get(card) == due
        )

    def _tell(self, where: str, reason: str) -> None:
        """Log why something is not arranged: once, and when it changes."""
        if self._told.get(where) == reason:
            return
        self._told[where] = reason
        LOG.error(
            "%s: not in the mode that [nova_accel] device_spec asks for: %s",
            where,
            reason,
        )


def _takes_away(action: actions.Action) -> bool:
    """Return whether something goes that a server may have.

    Every other count of VFs is by way of 0; a port that is released leaves
    the PF.
    """
    if isinstance(action, actions.SetVfCount):
        return action.before > 0
    return isinstance(action, actions.SetPort | actions.SetServices)


def _is_held(
    card: str,
    provider: str,
    due: Iterable[actions.Action],
    held: Iterable[model.Slot],
    host: host_reader.HostReader,
) -> bool:
    """Return whether a server has what a card would lose.

    VFs that are not there, as after a reboot, are not lost.
    """
    slots = tuple(held)
    if any(slot.identifier == card for slot in slots):
        return True
    return any(map(_takes_away, due)) and any(
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
    return f"{error!r}; report it to whoever wrote the driver"
