# SPDX-License-Identifier: Apache-2.0
"""Scrub of functions between two servers, with read-back."""

import errno
import time
from collections.abc import Iterable, Sequence

from nova_accel import errors, model
from nova_accel.claims import card_reset, scrub
from nova_accel.config import policy
from nova_accel.discovery import snapshot
from nova_accel.host.execute import (
    action_executor,
    function_actions,
    reset_checks,
)
from nova_accel.model import actions, pci

# Seconds to wait until a host driver has bound a function again: dfl-pci
# needs one second on an emulated processor.
_BIND_S, _BIND_STEP_S = 5.0, 0.25
# Actions that disturb the host if it uses the device.
_DISRUPTIVE = (actions.BindDriver, actions.RunScrub)


class Scrubber:
    """Scrubs functions that are assigned unchanged; callers lock the card."""

    def __init__(
        self,
        executor: action_executor.Executor,
        rules: policy.DeviceRules,
        host: snapshot.Snapshot,
    ) -> None:
        self.executor = executor
        self._rules = rules
        self._host = host

    def scrub(self, claim: model.Claim, running: frozenset[str]) -> bool:
        """Scrub the functions of a claim, and check that they answer.

        :param running: addresses of the functions that running guests
            have.
        :returns: whether all functions are clean. A function that is gone
            from the bus can't be scrubbed, and may come back as it was.
        :raises ActionError: a function is not scrubbed, and must not be
            assigned to another server.
        """
        addresses = tuple(filter(pci.is_address, claim.scrubbed))
        buses = reset_checks.read(self.executor.root, addresses)
        functions = [f.address for bus in buses for f in bus.functions]
        if not functions:
            return False
        rule = self._rule(claim)
        self._check_resettable(buses, rule)
        self.executor.apply_scrub(
            buses, rule, lambda due: self._check_free(claim, due, running)
        )
        for function in functions:
            if not reset_checks.is_answering(self.executor.root, function):
                raise _scrub_error(
                    function, errno.ENODEV, "it does not answer any more"
                )
        return len(functions) == len(addresses)

    def runs_command(self, claim: model.Claim) -> bool:
        """Return whether a command of the operator runs in the scrub.

        It may erase what a reset keeps.

        :raises ActionError: the device's line in device_spec is not known.
        """
        is_scrubbed = bool(claim.scrubbed)
        return is_scrubbed and bool(self._rule(claim).scrub_command)

    def await_drivers(
        self, claims: Iterable[model.Claim], host: model.HostState
    ) -> model.HostState:
        """Return the host once its drivers have bound a guest's functions.

        libvirt returns while the kernel is still binding them: a device
        that is read just then offers nothing, is absent, or does not show
        the function of its region.
        """
        addresses = {
            claim.device
            for claim in claims
            if claim.technology in model.UNDIVIDED
        }
        deadline = time.monotonic() + _BIND_S
        while time.monotonic() < deadline:
            unbound = {
                address
                for address in addresses
                if _is_unbound(host.device(address))
            }
            if not unbound:
                break
            time.sleep(_BIND_STEP_S)
            host = self._host.refresh_cards(unbound)
        return host

    @staticmethod
    def _check_resettable(
        buses: tuple[card_reset.BusFunctions, ...], rule: policy.Rule
    ) -> None:
        """Check that functions that are due to be reset can be."""
        bus = scrub.find_unresettable(buses, rule)
        if bus is not None:
            raise errors.ActionError(
                f"scrub {bus.functions[0].address}",
                errno.EOPNOTSUPP,
                function_actions.UNRESETTABLE,
                bus.explain_none(),
            )

    def _rule(self, claim: model.Claim) -> policy.Rule:
        """Return the device_spec line for a claim's device.

        The ids are read again, since the host's snapshot may lack the
        device.
        """
        ids = reset_checks.read_ids(self.executor.root, claim.device)
        if not all(ids):
            raise _scrub_error(
                claim.device,
                errno.ENODEV,
                "its ids can't be read, so which device_spec line is its own"
                " is not known",
            )
        return self._rules.rule(claim.device, *ids)

    def _check_free(
        self,
        claim: model.Claim,
        due: Sequence[actions.Action],
        running: frozenset[str],
    ) -> None:
        if not due:
            return
        in_guests = sorted(running & {*claim.scrubbed})
        if in_guests:
            raise _scrub_error(
                in_guests[0], errno.EBUSY, "a guest runs with it"
            )
        if not any(isinstance(action, _DISRUPTIVE) for action in due):
            return
        # The host may have begun to use the device since the last reading.
        host = self._host.refresh_cards({claim.device})
        if host.device(claim.device) is None:
            raise _scrub_error(
                claim.device,
                errno.EBUSY,
                "the host uses what the server left, or may do so",
            )


def _scrub_error(address: str, number: int, detail: str) -> errors.ActionError:
    hint = (
        "nothing more was done to it: see `nova-accel inspect` and the"
        " kernel's log (dmesg) on this host"
    )
    return errors.ActionError(f"scrub {address}", number, hint, detail)


def _is_unbound(device: model.Device | None) -> bool:
    """Return whether a device's driver on the host has not bound it yet."""
    if device is None or not device.counters:
        return True
    region = device.region
    if region is None or device.fault:
        return False
    return bool(region.driver) and region.function is None
