# SPDX-License-Identifier: Apache-2.0
"""Overrides for suspend and resume.

QEMU can't save a guest with a device of the host in it. Nova takes out
what it has given itself, before it saves; ours is taken out here, and put
back when the guest runs again. A guest that does not let go is not saved.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.compute import vm_states
from nova.virt.libvirt import driver

from nova_accel import errors, model
from virt_hooks.guest import connection, unplug
from virt_hooks.operations import bypass
from virt_hooks.report import reporter
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)


class SuspendDriver(driver.LibvirtDriver):
    """LibvirtDriver that suspends and resumes guests with ours in them."""

    _accel: lifecycle.Lifecycle

    def _read_running(self) -> connection.HostdevUse:
        """Return what the guests that run have."""
        raise NotImplementedError

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

    @bypass.accelerators_only
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
            unplug.unplug(
                self._host,
                guest,
                ours,
                nova.conf.CONF.libvirt.device_detach_timeout,
            )
        with contextlib.ExitStack() as undo:
            undo.callback(unplug.plug, guest, ours)
            if not instance.get_pci_devices():  # of which Nova puts none back
                undo.enter_context(_refused(exception.InstanceSuspendFailure))
                undo.enter_context(connection.answering(guest.name))
            super().suspend(context, instance)
            undo.pop_all()

    @bypass.accelerators_only
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
                unplug.plug(self._host.get_guest(instance), ours)
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

    def _plug_missing(self) -> None:
        """Put back into running guests what they lack of their definitions.

        A suspend or a snapshot that fails puts it back itself, unless
        libvirt fails then as well.
        """
        running = self._read_running()
        lacking = {
            claim.consumer
            for claim in self._accel.claims()
            if claim.state is model.ClaimState.MADE
            and not running.holds(claim.handle)
        }
        if not lacking:
            return
        for guest in self._host.list_guests(only_running=True):
            if guest.uuid in lacking:
                with reporter.logged("can't mend guest %s", guest.uuid):
                    self._plug_back(guest)

    def _plug_back(self, guest: Any) -> None:
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), guest.uuid
        )
        # What works on the server plugs, or unplugs, itself.
        is_idle = instance.task_state is None
        if is_idle and instance.vm_state == vm_states.ACTIVE:
            unplug.plug(guest, self._handles(instance))

    def _attach_mediated_devices(self, guest: Any, devs: Any) -> None:
        """Leave ours to us: of an mdev Nova forgets display and place."""
        stock = list(devs)
        if stock:
            ours = self._handles()
            stock = [dev for dev in stock if dev.uuid not in ours]
        super()._attach_mediated_devices(guest, stock)

    @bypass.accelerators_only
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
            unplug.plug(self._host.get_guest(instance), ours)


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
