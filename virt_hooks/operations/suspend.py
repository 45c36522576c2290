# SPDX-License-Identifier: Apache-2.0
"""Suspend, resume and cold snapshots.

QEMU can't save a guest that has a host device. Nova unplugs its own host
devices before it saves a guest; accelerators are unplugged here, and
plugged in again when the guest runs. A guest that does not release a
device is not suspended.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from nova import exception
from nova.compute import vm_states

from nova_accel import errors, model
from nova_accel.config import logs
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import connection, plug
from virt_hooks.instance import nova_records
from virt_hooks.operations import server_partitions
from virt_hooks.spawn import claim_store

LOG = logging.getLogger(__name__)


class Suspend:
    """Unplugs the devices of servers that are suspended."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        domains: connection.HostdevReader,
    ) -> None:
        self._partitions = partitions
        self._accel, self._host = partitions.accel, partitions.host
        self._domains = domains

    def suspend(self, stock: Stock, context: Any, instance: Any) -> None:
        """Unplug the devices before the stock method, or refuse.

        Nova suspends running servers for cold snapshots, too.
        """
        handles = self._handles_of(instance)
        if not handles:
            stock()
            return
        guest = self._host.get_guest(instance)
        with _as_rollback(exception.InstanceSuspendFailure):
            plug.unplug(self._host, guest, handles)
        with contextlib.ExitStack() as undo:
            undo.callback(plug.plug, guest, handles)
            # After an error Nova does not plug its own PCI devices in again.
            if not instance.get_pci_devices():
                undo.enter_context(
                    _as_rollback(exception.InstanceSuspendFailure)
                )
                undo.enter_context(connection.translated_errors(guest.name))
            stock()
            undo.pop_all()

    def resume(
        self, stock: Stock, stock_suspend: Stock, context: Any, instance: Any
    ) -> None:
        """Plug the devices in after the stock method, or suspend again."""
        with self._partitions.starting(instance):
            self._resume(stock, stock_suspend, context, instance)

    def _resume(
        self, stock: Stock, stock_suspend: Stock, context: Any, instance: Any
    ) -> None:
        handles = self._handles_of(instance)
        if instance.resources:
            with _as_rollback(exception.InstanceResumeFailure):
                self._partitions.restore(context, instance)
            handles = self._handles_of(instance)
        stock()
        if not handles:
            return
        with _as_rollback(exception.InstanceResumeFailure):
            try:
                plug.plug(self._host.get_guest(instance), handles)
            except errors.DomainsError:
                self._suspend_again(stock_suspend, context, instance)
                raise

    def _suspend_again(
        self, stock: Stock, context: Any, instance: Any
    ) -> None:
        """Suspend a guest that runs without its devices.

        Nova sets a server to suspended after a rollback of its resume, so
        an error of this suspend is raised without the rollback.
        """
        try:
            self.suspend(stock, context, instance)
        except exception.InstanceFaultRollback as error:
            raise error.inner_exception from error

    def plug_missing(self) -> None:
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
        instance = nova_records.read_instance(guest.uuid)
        # A task in progress plugs or unplugs the devices itself.
        is_idle = instance.task_state is None
        if is_idle and instance.vm_state == vm_states.ACTIVE:
            plug.plug(guest, self._handles_of(instance))

    def exclude_claimed(self, devices: Iterable[Any]) -> list[Any]:
        """Return the mdevs that Nova may attach itself.

        It would attach those of claims without display and address; ``resume``
        plugs them in with the elements of the definition.

        :param devices: have their ``uuid``.
        """
        handles = claim_store.handles_of(self._accel.claims())
        return [device for device in devices if device.uuid not in handles]

    def resume_guest_after_snapshot(
        self,
        stock: Stock,
        context: Any,
        live_snapshot: Any,
        original_power_state: Any,
        instance: Any,
        guest: Any,
    ) -> None:
        """Plug the devices in after the stock method resumed the guest."""
        stock()
        if handles := self._handles_of(instance):
            plug.plug(self._host.get_guest(instance), handles)

    def _handles_of(self, instance: Any) -> frozenset[str]:
        return claim_store.handles_of(self._accel.claims_of(instance.uuid))


@contextlib.contextmanager
def _as_rollback(kind: Any) -> Iterator[None]:
    """Raise our errors as one after which Nova keeps the server's state."""
    try:
        yield
    except (
        errors.AcceleratorError,
        exception.ComputeResourcesUnavailable,
    ) as error:
        logs.error(LOG, "%s", error)
        raise exception.InstanceFaultRollback(
            kind(
                reason=error.public
                if isinstance(error, errors.AcceleratorError)
                else str(error)
            )
        ) from error
