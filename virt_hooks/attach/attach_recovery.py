# SPDX-License-Identifier: Apache-2.0
"""Recovery of interrupted attachments.

Whoever ends in the middle leaves a record that tells how far it was, and a
task state that keeps Nova's API from anything else but a delete. A later
pass finds both.
"""

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import nova.conf
import oslo_messaging
from nova import context as nova_context
from nova import exception, objects, utils
from nova.virt.libvirt import driver

from nova_accel import errors, model
from nova_accel.model import attachment, names
from virt_hooks.guest import connection, libvirt_guest, plug
from virt_hooks.instance import instance_request
from virt_hooks.operations import nova_database
from virt_hooks.report import reconcile, reporter, server_allocations
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

ATTACHING, DETACHING = "attaching_accelerator", "detaching_accelerator"
_OURS = (ATTACHING, DETACHING)
_ATTRIBUTES = ["flavor", "system_metadata", "resources", "migration_context"]


class AttachRecoveryDriver(driver.LibvirtDriver):
    """What AccelLibvirtDriver does about attachments that end.

    It is a part of it, not a driver by itself.
    """

    _accel: lifecycle.Lifecycle
    _at_start: nova_database.StartupServers
    _reporter: reporter.Reporter
    _reconciler: reconcile.Reconciler

    def init_host(self, host: str) -> None:
        """Learn the name of this host, and what must be mended here."""
        self._here = host
        with reporter.logged("Can't attach accelerators to servers"):
            self._booking = server_allocations.ServerAllocations(self.virtapi)
        #: Servers that were left in the middle, once that was asked.
        self._unmended: set[str] = set()
        self._is_unmended_known = False
        self._mending = threading.Lock()
        super().init_host(host)

    def get_available_resource(self, nodename: str) -> Any:
        """Mend first what was left in the middle."""
        with reporter.logged("can't mend what was attached"):
            self._mend()
        return super().get_available_resource(nodename)

    # -- where it is ------------------------------------------------------

    def _read_instance(self, context: Any, uuid: str) -> Any:
        try:
            instance = objects.Instance.get_by_uuid(
                context.elevated(), uuid, expected_attrs=_ATTRIBUTES
            )
        except exception.InstanceNotFound as error:
            reason = "there is no such server"
            raise errors.ClaimError(uuid, reason, public=reason) from error
        if instance.host != self._here:
            raise errors.ClaimError(
                uuid, f"it is on host {instance.host}, not {self._here}"
            )
        return instance

    def _handles_in(
        self, uuid: str, one: attachment.Attachment
    ) -> frozenset[str]:
        """Return what an attachment is in the server's domain."""
        found = {
            handle
            for claim in self._accel.claims_of(uuid)
            if is_of(claim, one)
            for handle in plug.handles_of(claim)
        }
        if one.slot and not found:  # after a restart it may be gone
            found = {names.mdev_uuid(one.provider, one.slot), one.slot}
        return frozenset(found)

    # -- what is left, taken away ------------------------------------------

    @contextlib.contextmanager
    def _looked_after(self, context: Any, uuid: str) -> Iterator[None]:
        """Have a later pass look at a server of which something failed."""
        try:
            with self._noted(uuid):
                yield
        finally:
            self._tell(context)

    @contextlib.contextmanager
    def _noted(self, uuid: str) -> Iterator[None]:
        """Note a server of which something fails."""
        with contextlib.ExitStack() as failed:
            failed.callback(self._unmended.add, uuid)
            yield
            failed.pop_all()

    @contextlib.contextmanager
    def _undoing(
        self, context: Any, uuid: str, one: attachment.Attachment
    ) -> Iterator[None]:
        """Take everything back that was done for an attachment that fails."""

        def undo(_: Any, error: BaseException | None, __: Any) -> bool:
            if error is not None:
                LOG.error("server %s gets no %s: %s", uuid, one.name, error)
                self._finish(context, uuid, one, error)
            return False

        with contextlib.ExitStack() as stack:
            stack.push(undo)
            yield

    def _finish(
        self,
        context: Any,
        uuid: str,
        one: attachment.Attachment,
        why: BaseException | None = None,
    ) -> None:
        """Take away all that an attachment is; or let a later pass do it.

        :param why: what it is undone for.
        :raises ClaimError: the rest is left to a later pass.
        """
        try:
            self._take_away(context, uuid, one.number)
        except (
            errors.AcceleratorError,
            exception.NovaException,
            oslo_messaging.MessagingException,
        ) as error:
            LOG.error(
                "%s of %s can't be undone yet: %s", one.name, uuid, error
            )
            raise errors.ClaimError(
                uuid,
                f"{why or 'it is detached'}; what is left of {one.name} is"
                f" given back with Nova's next periodic task: {error}",
            ) from error

    def _take_away(self, context: Any, uuid: str, number: int) -> None:
        """Take an attachment out of everything; it may be done twice."""
        instance = self._read_instance(context, uuid)
        for one in instance_request.attachments_of(instance):
            if one.number == number:
                self._take_out(instance, one)
                # The slot first: whom Placement gives the place is sure
                # to find one. What is left is known by the record.
                self._booking.give_slots(
                    instance,
                    _slots(one),
                    functools.partial(
                        write, instance, attachment.with_slot(one, "")
                    ),
                )
                self._booking.allocate(
                    context, uuid, one.provider, one.besides
                )
                write(instance, one, is_gone=True)
                instance.save()
        self._let_be(instance)

    def _take_out(self, instance: Any, one: attachment.Attachment) -> None:
        """Take a device out of the domain, then unmake and scrub it.

        :raises AcceleratorError: the guest keeps it.
        """
        if not one.slot:
            return
        handles = self._handles_in(instance.uuid, one)
        if plug.runs_with(self._host, instance, handles):
            plug.release(
                self._host,
                instance,
                handles,
                nova.conf.CONF.libvirt.device_detach_timeout,
            )
        plug.forget(self._host, instance, handles)
        given = _slots(one)
        self._at_start.give_up(instance.uuid, given)
        self._accel.release(
            instance.uuid,
            given,
            lambda claim: libvirt_guest.is_holding(
                self._host, instance, claim
            ),
            connection.HostdevUse(mdevs=handles, functions=handles),
        )
        if any(is_of(c, one) for c in self._accel.claims_of(instance.uuid)):
            reason = f"its guest still runs with {one.name}"
            raise errors.ClaimError(instance.uuid, reason, public=reason)

    def _let_be(self, instance: Any) -> None:
        """Let others work with a server again, unless they do already."""
        if instance.task_state not in _OURS:
            return
        instance.task_state = None
        with contextlib.suppress(
            exception.UnexpectedTaskStateError, exception.InstanceNotFound
        ):
            instance.save(expected_task_state=list(_OURS))

    # -- mending -----------------------------------------------------------

    def _mend(self) -> None:
        """Bring to an end what was left in the middle, by whomever."""
        if not self._mending.acquire(blocking=False):
            return  # somebody is at it
        try:
            self._mend_all(nova_context.get_admin_context())
        finally:
            self._mending.release()

    def _mend_all(self, context: Any) -> None:
        if not (self._booking.is_ready and self._accel.is_alone):
            return
        self._find_unmended(context)
        due = sorted(self._unmended)
        for uuid in due:
            with reporter.logged("can't mend what %s was given", uuid):
                self._mend_one(context, uuid)
        if due:
            self._tell(context)

    def _mend_at_start(self) -> None:
        """Mend what the last service left, as soon as that can be done.

        What fails is the periodic task's from then on: it may want a guest
        to answer.
        """
        if not self._is_unmended_known:
            with reporter.logged("can't mend what was attached"):
                self._mend()

    def _find_unmended(self, context: Any) -> None:
        """Learn once what the last service left."""
        if self._is_unmended_known:
            return
        self._unmended |= {
            instance.uuid
            for instance in objects.InstanceList.get_by_host(
                context, self._here, expected_attrs=[]
            )
            if instance.task_state in _OURS
        }
        self._is_unmended_known = True

    def _mend_one(self, context: Any, uuid: str) -> None:
        """Mend one server, unless it is gone, or elsewhere."""
        self._unmended.discard(uuid)
        with (
            self._noted(uuid),
            contextlib.suppress(exception.InstanceNotFound),
        ):
            if objects.Instance.get_by_uuid(context, uuid).host != self._here:
                return

            @utils.synchronized(uuid)
            def mend() -> None:
                instance = self._read_instance(context, uuid)
                for one in instance_request.attachments_of(instance):
                    if one.state is not attachment.AttachmentState.HERE:
                        self._decide(context, instance, one)
                self._let_be(self._read_instance(context, uuid))

            mend()

    def _decide(
        self, context: Any, instance: Any, one: attachment.Attachment
    ) -> None:
        """Let stay what the domain has, and take the rest away.

        One that was to come is whole if definition and guest have it; one
        that was to go has not gone while a guest runs with it.
        """
        handles = self._handles_in(instance.uuid, one)
        is_served = one in instance_request.served(instance)
        if one.state is attachment.AttachmentState.COMING:
            stays = is_served and plug.holds(self._host, instance, handles)
        else:
            stays = is_served and plug.runs_with(self._host, instance, handles)
        LOG.warning(
            "%s of server %s was left %s: it %s",
            one.name,
            instance.uuid,
            one.state.value,
            "stays" if stays else "is taken away",
        )
        if stays:
            write(
                instance,
                attachment.in_state(one, attachment.AttachmentState.HERE),
            )
            instance.save()
        else:
            self._take_away(context, instance.uuid, one.number)

    def _tell(self, context: Any) -> None:
        """Let Placement know at once what the cards have become."""
        self._reporter.publish(context)
        self._reconciler.wake()


def write(
    instance: Any, one: attachment.Attachment, is_gone: bool = False
) -> None:
    """Write an attachment into a server, or out of it; nothing is saved.

    It has the rest of its system metadata as that is by now: Nova saves
    all of it, and its API may have written there since the server was read.

    :raises nova.exception.InstanceNotFound: it is gone.
    """
    now = objects.Instance.get_by_uuid(
        nova_context.get_admin_context(),
        instance.uuid,
        expected_attrs=["system_metadata"],
    )
    change = attachment.without if is_gone else attachment.replaced
    instance.system_metadata = attachment.write(
        now.system_metadata, change(instance_request.attachments_of(now), one)
    )


def _slots(one: attachment.Attachment) -> tuple[model.Slot, ...]:
    if not one.slot:
        return ()
    return (
        model.Slot(
            provider=one.provider, resource_class="", identifier=one.slot
        ),
    )


def is_of(claim: model.Claim, one: attachment.Attachment) -> bool:
    """Return whether a claim is an attachment's."""
    return (claim.provider, claim.slot) == (one.provider, one.slot)
