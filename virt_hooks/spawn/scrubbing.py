# SPDX-License-Identifier: Apache-2.0
"""Scrub of functions between two servers, with read-back."""

import errno

from nova_accel import errors, model
from nova_accel.claims import scrub
from nova_accel.config import policy
from nova_accel.discovery import snapshot
from nova_accel.host.execute import action_executor, reset_checks
from nova_accel.model import actions, pci

# What the host may not be at work with meanwhile.
_RESOLUTE = (actions.BindDriver, actions.RunScrub)


class Scrubber:
    """Scrubs what is given as it is; whoever calls holds its card."""

    def __init__(
        self,
        executor: action_executor.Executor,
        rules: policy.Policy,
        host: snapshot.Snapshot,
    ) -> None:
        self._executor = executor
        self._rules = rules
        self._host = host

    def scrub(self, claim: model.Claim, running: frozenset[str]) -> bool:
        """Scrub what a claim stands for, and see that it answers.

        :param running: addresses of the functions that guests run with.
        :returns: whether all of it is clean; what is gone from the bus
            can't be scrubbed, and may come back as it was.
        :raises ActionError: it is not scrubbed, and must not be given to
            another server.
        """
        addresses = tuple(filter(pci.is_address, scrub.addresses(claim)))
        root = self._executor.root
        found = tuple(
            function
            for address in addresses
            if (function := reset_checks.read(root, address)) is not None
        )
        if not found:
            return False
        due = scrub.plan(found, self._rule(claim))
        if due:
            self._check_free(claim, due, running)
        self._executor.apply_all(due)
        for function in found:
            if not reset_checks.answers(root, function.address):
                raise _refusal(
                    function.address,
                    errno.ENODEV,
                    "it does not answer any more",
                )
        return len(found) == len(addresses)

    def _rule(self, claim: model.Claim) -> policy.Rule:
        """Return the line for a claim's device, as it is now.

        The host may not be able to describe it.
        """
        ids = reset_checks.ids(self._executor.root, claim.device)
        if not all(ids):
            raise _refusal(
                claim.device,
                errno.ENODEV,
                "its ids can't be read, so which device_spec line is its own"
                " is not known",
            )
        return self._rules.rule(claim.device, *ids)

    def _check_free(
        self,
        claim: model.Claim,
        due: tuple[actions.Action, ...],
        running: frozenset[str],
    ) -> None:
        taken = sorted(running & {*scrub.addresses(claim)})
        if taken:
            raise _refusal(taken[0], errno.EBUSY, "a guest runs with it")
        is_resolute = any(isinstance(action, _RESOLUTE) for action in due)
        if not is_resolute:
            return
        # What the host found on it since, it was read before.
        host = self._host.refresh_cards({claim.device})
        if host.device(claim.device) is None:
            raise _refusal(
                claim.device,
                errno.EBUSY,
                "the host uses what the server left, or may do so",
            )


def _refusal(address: str, number: int, detail: str) -> errors.ActionError:
    mend = (
        "nothing more was done to it: see `nova-accel inspect` and the"
        " kernel's log (dmesg) on this host"
    )
    return errors.ActionError(f"scrub {address}", number, mend, detail)
