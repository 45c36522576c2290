# SPDX-License-Identifier: Apache-2.0
"""Functions scrubbed between two servers, and read back."""

import errno

from nova_accel import actions, errors, model, pci, policy, scrub
from nova_accel.host import execute, functions
from virt_hooks import programming, snapshot

# What the host may not be at work with meanwhile.
_RESOLUTE = (actions.BindDriver, actions.RunScrub)


class Scrubbing:
    """Scrubs what is given as it is; whoever calls holds its card."""

    def __init__(
        self,
        executor: execute.Executor,
        rules: policy.Policy,
        host: snapshot.Snapshot,
        programs: programming.Programming,
    ) -> None:
        """Use these; ``programs`` knows what guests run with."""
        self._executor = executor
        self._rules = rules
        self._host = host
        self._programs = programs

    def scrub(self, claim: model.Claim) -> None:
        """Scrub what a claim stands for, and see that it answers.

        What is gone from the bus has nothing to scrub.

        :raises ActionError: it is not scrubbed, and must not be given to
            another server.
        """
        wanted = filter(pci.is_address, scrub.addresses(claim))
        root = self._executor.root
        found = tuple(
            function
            for address in wanted
            if (function := functions.read(root, address)) is not None
        )
        if not found:
            return
        # The host may not be able to describe the device as it is now.
        rule = self._rules.rule(
            claim.device, *functions.ids(root, claim.device)
        )
        due = scrub.plan(found, rule)
        if due:
            self._check_free(claim, due)
        self._executor.apply_all(due)
        for function in found:
            if not functions.answers(root, function.address):
                raise _refusal(
                    function.address,
                    errno.ENODEV,
                    "it does not answer any more",
                )

    def _check_free(
        self, claim: model.Claim, due: tuple[actions.Action, ...]
    ) -> None:
        running = self._programs.uses(True).functions
        taken = sorted(running & {*scrub.addresses(claim)})
        if taken:
            raise _refusal(taken[0], errno.EBUSY, "a guest runs with it")
        is_resolute = any(isinstance(action, _RESOLUTE) for action in due)
        if is_resolute and self._host.state.device(claim.device) is None:
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
