# SPDX-License-Identifier: Apache-2.0
"""Template of a vendor driver: describes no device, plans no action.

Copy this file to write a driver; the manual's page "Writing a driver" does
so step by step. A driver needs four steps:

1. Write the class: a ``name`` and the four methods below. It needs no base
   class; ``nova_accel.discovery.plugin.Driver`` is a protocol.
2. Register the class in the ``setup.cfg`` of your package::

       [options.entry_points]
       nova_accel.drivers =
           mycard = mypackage.mycard:MyCardDriver

3. Install the package, and run ``nova-accel inspect`` to see its devices.
4. Check that it keeps the rules, on a host or an archive with the card::

       python -m nova_accel.conformance mycard --root DIR|ARCHIVE

Rules of a driver; the conformance suite checks what it can observe:

- **Read through the HostReader only.** ``nova-accel capture`` then packs
  all that the driver reads, and a bug can be reproduced without the card.
- **Write nothing.** Return actions (``nova_accel.model.actions``). The
  library runs them with the privileges they need, verifies them, and undoes
  them if a later one fails.
- **Match by kernel facts** (ids, class, attributes), not by display names.
- **Unknown is not absent.** Yield a device with the data that could be read,
  and a ``Problem`` for the rest. Do not guess, and do not raise because one
  card is broken.
- **Be deterministic.** The same host gives the same devices, the same claim
  the same actions.
"""

from collections.abc import Iterable, Sequence

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions


class TemplateDriver:
    """Describes no device and plans no action."""

    # The name of the entry point, and ``plugin`` of each device.
    name = "template"

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterable[model.Device | model.Problem]:
        """Yield one device for each physical card, never one for each VF.

        It is called for each card of the host, and for one card when that is
        read again. A real driver, for each PF in ``card.functions()`` (or
        parent in ``card.mdev_parents()``), which are those of the card:

        1. skips it if its ids or its kernel driver are not its own;
        2. skips it if its address is in ``taken``: another driver has
           described it;
        3. skips it if ``rules.rule(address, vendor, product).use`` names
           another use;
        4. reads it, and yields a ``Problem`` for each failure;
        5. yields a ``Device``. Its ``counters`` are the totals that
           Placement counts. Its ``profiles`` say what one partition
           charges, and how many more can be made now. Its ``slots`` are
           enough for any state of the card. Its ``partitions`` are those
           that exist.

        If parts of a card are devices themselves, as the regions of an FPGA
        are, it yields the card too; the parts name it as ``parent``.

        :raises UnreadableError: no card of this technology can be read, for
            example because the PCI bus can't be listed.
        """
        return ()

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that create the claim's partition, in order.

        Use the claim only, so that a retry gets the same actions; the
        library skips those that are done already. Return none if the guest
        gets a function unchanged: libvirt binds it to VFIO and back.
        """
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that remove the claim's partition.

        In general the undo of each action of ``plan_prepare``, in reverse
        order.
        """
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return the actions that put cards into the mode policy asks for.

        Only for modes that a reboot resets, such as VF counts. Return none
        for a card that is in use, that no device_spec line names, or whose
        mode can't be read.

        :raises UnreadableError: as for ``describe``.
        """
        return ()
