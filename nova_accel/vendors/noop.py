# SPDX-License-Identifier: Apache-2.0
"""Template of a vendor driver: it describes nothing and plans nothing.

Copy this file to write a driver ("Writing a driver" in the manual builds
one from it). Four steps make it known:

1. Write the class. It needs a ``name`` and the four methods below; it
   need not inherit from anything (``nova_accel.discovery.plugin.Driver`` is a
   protocol).
2. Name it in your package's ``setup.cfg``::

       [options.entry_points]
       nova_accel.drivers =
           mycard = mypackage.mycard:MyCardDriver

3. Install the package beside nova-accel and run ``nova-accel inspect``.
4. Check that it keeps the library's rules, on hosts that have the card::

       python -m nova_accel.conformance mycard --root DIR|ARCHIVE

The rules of the house:

- A driver reads through the ``HostReader`` it is given, and nothing else:
  that is what makes ``nova-accel capture`` complete, and a bug on a host
  you can't reach reproducible on your desk.
- A driver never writes. What has to change is returned as actions; the
  library carries them out with the right privileges, reads them back, and
  undoes them when a later one fails.
- Match by what the kernel shows (ids, classes, attributes), never by
  names made for people.
- What can be read only in part is described as far as it can be, with a
  ``Problem`` beside it. Never guess, never raise for one bad card, and
  never leave one out without a word: unknown is not absent.
- The same host is the same description, the same claim the same plan.
"""

from collections.abc import Iterable, Sequence

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions


class NoopDriver:
    """Describes no device and plans no change."""

    name = "noop"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterable[model.Device | model.Problem]:
        """Return nothing.

        A real driver walks ``host.functions()`` (or ``mdev_parents()``),
        passes over addresses in ``taken`` (another driver has described
        them) and over those for which ``rules.rule(...)`` says another
        use, and yields one ``Device`` for each physical card: its
        counters, its profiles with what each charges and how many more
        can be made now, its slots (one for each partition that the card
        could hold in any state), and the partitions that exist. A card
        whose parts are devices themselves, as an FPGA's regions, is
        yielded too; the parts name it as their ``parent``.
        """
        return ()

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action.

        A real driver returns what makes the claim's partition, in order.
        The same claim must give the same actions: the library skips those
        that are done already, so that a retry is safe. A driver whose
        functions go to guests as they are returns none: libvirt binds
        them to VFIO and back.
        """
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action.

        A real driver returns what unmakes the claim's partition: in
        general the prepare list backwards, each action undone.
        """
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return no action.

        A real driver whose cards forget their mode at a reboot (VF
        counts, for example) returns what brings back the mode that
        policy asks for, and nothing for a card that is in use, that no
        line names, or of which that can't be read.
        """
        return ()
