# SPDX-License-Identifier: Apache-2.0
"""Overrides for suspend and resume.

QEMU can't save a guest that has a host device. Nova unplugs its own host
devices before it saves a guest; these overrides unplug accelerators, and
plug them in again when the guest runs. A guest that does not release a
device is not suspended.
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
from virt_hooks import error_guards
from virt_hooks.guest import connection, plug
from virt_hooks.operations import bypass
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)


class SuspendDriver(driver.LibvirtDriver):
    """Base of AccelLibvirtDriver: suspend, resume and cold snapshots."""

    _accel: lifecycle.Lifecycle
    _domains: connection.HostdevReader

    def _claimed_handles(self, instance: Any = None) -> frozenset[str]:
        """Return the mdev uuids and PCI addresses of claims.

        :param instance: the claims of this server only.
        """
        raise NotImplementedError

    def _restore_partitions(self, context: Any, instance: Any) -> None:
        """Make the partitions of a server's slots unless they are made.

        :raises nova.exception.ComputeResourcesUnavailable: they can't be
            made.
        """
        raise NotImplementedError

    @bypass.accelerators_only
    def suspend(self, context: Any, instance: Any) -> None:
        """Unplug the devices before the stock method, or refuse.

        Nova suspends running servers for cold snapshots, too.
        """
        handles = self._claimed_handles(instance)
        if not handles:
            super().suspend(context, instance)
            return
        guest = self._host.get_guest(instance)
        with _as_rollback(exception.InstanceSuspendFailure):
            plug.unplug(
                self._host,
                guest,
                handles,
                nova.conf.CONF.libvirt.device_detach_timeout,
            )
        with contextlib.ExitStack() as undo:
            undo.callback(plug.plug, guest, handles)
            # After an error Nova does not plug its own PCI devices in again.
            if not instance.get_pci_devices():
                undo.enter_context(
                    _as_rollback(exception.InstanceSuspendFailure)
                )
                undo.enter_context(connection.translated_errors(guest.name))
            super().suspend(context, instance)
            undo.pop_all()

    @bypass.accelerators_only
    def resume(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Plug the devices in after the stock method, or suspend again."""
        handles = self._claimed_handles(instance)
        if instance.resources:
            with _as_rollback(exception.InstanceResumeFailure):
                self._restore_partitions(context, instance)
            handles = self._claimed_handles(instance)
        super().resume(context, instance, *args, **kwargs)
        if not handles:
            return
        with _as_rollback(exception.InstanceResumeFailure):
            try:
                plug.plug(self._host.get_guest(instance), handles)
            except errors.DomainsError:
                self._suspend_again(context, instance)
                raise

    def _suspend_again(self, context: Any, instance: Any) -> None:
        """Suspend a guest that runs without its devices.

        Nova sets a server to suspended after a rollback of its resume, so
        an error of this suspend is raised without the rollback.
        """
        try:
            self.suspend(context, instance)
        except exception.InstanceFaultRollback as error:
            raise error.inner_exception from error

    def _plug_missing(self) -> None:
        """Plug devices in that running guests lack of their definitions.

        A failing suspend or snapshot plugs them in itself, unless libvirt
        fails then as well.
        """
        running = self._domains.read_running()
        consumers = {
            claim.consumer
            for claim in self._accel.claims()
            if claim.state is model.ClaimState.MADE
            and not running.holds(claim.handle)
        }
        if not consumers:
            return
        for guest in self._host.list_guests(only_running=True):
            if guest.uuid in consumers:
                with error_guards.log_errors(
                    "can't repair guest %s", guest.uuid
                ):
                    self._plug_if_idle(guest)

    def _plug_if_idle(self, guest: Any) -> None:
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), guest.uuid
        )
        # A task in progress plugs or unplugs the devices itself.
        is_idle = instance.task_state is None
        if is_idle and instance.vm_state == vm_states.ACTIVE:
            plug.plug(guest, self._claimed_handles(instance))

    def _attach_mediated_devices(self, guest: Any, devs: Any) -> None:
        """Skip our mdevs: Nova would attach them without display and address.

        ``resume`` plugs them in with the elements of the definition.
        """
        stock = list(devs)
        if stock:
            handles = self._claimed_handles()
            stock = [dev for dev in stock if dev.uuid not in handles]
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
        """Plug the devices in after the stock method resumed the guest."""
        super()._resume_guest_after_snapshot(
            context, live_snapshot, original_power_state, instance, guest
        )
        if handles := self._claimed_handles(instance):
            plug.plug(self._host.get_guest(instance), handles)


@contextlib.contextmanager
def _as_rollback(kind: Any) -> Iterator[None]:
    """Raise our errors as one after which Nova keeps the server's state."""
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
