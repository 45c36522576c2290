# SPDX-License-Identifier: Apache-2.0
"""Suspend and resume, of servers whose guests have accelerators.

QEMU can't save a guest with a device of the host in it. Nova takes out
what it has given itself, before it saves; ours is taken out here, and put
back when the guest runs again. A guest that does not let go is not saved.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import nova.conf
from nova import exception
from nova.virt.libvirt import driver

from nova_accel import errors
from virt_hooks import connection, nova_bypass, nova_unplug

LOG = logging.getLogger(__name__)


class SuspendingDriver(driver.LibvirtDriver):
    """LibvirtDriver that suspends and resumes guests with ours in them."""

    def _handles(self, instance: Any = None) -> frozenset[str]:
        """Return mdev uuids and PCI addresses that servers have of ours.

        :param instance: of this one only.
        """
        raise NotImplementedError

    def _bring_back(self, context: Any, instance: Any) -> None:
        """Make what a server's slots stand for, unless it is made.

        :raises nova.exception.ComputeResourcesUnavailable: it can't be.
        """
        raise NotImplementedError

    @nova_bypass.accelerators_only
    def suspend(self, context: Any, instance: Any) -> None:
        """Take ours out of the guest, then save it; or refuse, and say why.

        Cold snapshots of running servers come this way, too.
        """
        ours = self._handles(instance)
        if not ours:
            super().suspend(context, instance)
            return
        guest = self._host.get_guest(instance)
        with _refused(exception.InstanceSuspendFailure):
            nova_unplug.unplug(
                self._host,
                guest,
                ours,
                nova.conf.CONF.libvirt.device_detach_timeout,
            )
        with contextlib.ExitStack() as undo:
            undo.callback(nova_unplug.plug, guest, ours)
            if not instance.get_pci_devices():  # of which Nova puts none back
                undo.enter_context(_refused(exception.InstanceSuspendFailure))
                undo.enter_context(connection.answering(guest.name))
            super().suspend(context, instance)
            undo.pop_all()

    @nova_bypass.accelerators_only
    def resume(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Resume the guest with what it had, or leave it suspended."""
        ours = self._handles(instance)
        if instance.resources:
            with _refused(exception.InstanceResumeFailure):
                self._bring_back(context, instance)
            ours = self._handles(instance)
        super().resume(context, instance, *args, **kwargs)
        if not ours:
            return
        with _refused(exception.InstanceResumeFailure):
            try:
                nova_unplug.plug(self._host.get_guest(instance), ours)
            except errors.DomainsError:
                self._suspend_again(context, instance)
                raise

    def _suspend_again(self, context: Any, instance: Any) -> None:
        """Suspend a guest that runs without ours; failing that, say so.

        Nova calls a server suspended whose resuming is taken back.
        """
        try:
            self.suspend(context, instance)
        except exception.InstanceFaultRollback as error:
            raise error.inner_exception from error

    def _attach_mediated_devices(self, guest: Any, devs: Any) -> None:
        """Leave ours to us: of an mdev Nova forgets display and place."""
        stock = list(devs)
        if stock:
            ours = self._handles()
            stock = [dev for dev in stock if dev.uuid not in ours]
        super()._attach_mediated_devices(guest, stock)

    @nova_bypass.accelerators_only
    def _resume_guest_after_snapshot(
        self,
        context: Any,
        live_snapshot: Any,
        original_power_state: Any,
        instance: Any,
        guest: Any,
    ) -> None:
        """Put ours back once the guest that was saved runs again."""
        super()._resume_guest_after_snapshot(
            context, live_snapshot, original_power_state, instance, guest
        )
        if ours := self._handles(instance):
            nova_unplug.plug(self._host.get_guest(instance), ours)


@contextlib.contextmanager
def _refused(kind: Any) -> Iterator[None]:
    """Turn a failure of ours into one that leaves a server as it was."""
    try:
        yield
    except (
        errors.AcceleratorError,
        exception.ComputeResourcesUnavailable,
    ) as error:
        LOG.error("%s", error)
        raise exception.InstanceFaultRollback(
            kind(
                reason=error.public
                if isinstance(error, errors.AcceleratorError)
                else str(error)
            )
        ) from error
