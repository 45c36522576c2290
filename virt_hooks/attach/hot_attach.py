# SPDX-License-Identifier: Apache-2.0
"""Hot attach and detach of a profile.

What is to be done is written down in the server before it is begun, with
a task state of ours: so whatever ends in the middle is mended.
"""

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects, utils
from nova.compute import vm_states

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.claims import attach_candidates
from nova_accel.model import attachment, providers
from virt_hooks.attach import attach_recovery, attach_show
from virt_hooks.guest import plug
from virt_hooks.instance import bitstream_images, instance_request, slots
from virt_hooks.report import reporter

LOG = logging.getLogger(__name__)

_USABLE = (vm_states.ACTIVE, vm_states.STOPPED)
_CONFLICT = 409


class HotAttachDriver(attach_show.AttachShowDriver):
    """What AccelLibvirtDriver does when it is asked over the bus.

    It is a part of it, not a driver by itself.
    """

    _images: bitstream_images.BitstreamImages

    def attach_accelerator(
        self, context: Any, uuid: str, profile: str, bitstream: str = ""
    ) -> dict[str, str]:
        """Give a server one more profile; return its name and device.

        All of it or nothing.

        :param profile: its name, or its trait.
        :param bitstream: id of the image that an FPGA region is to hold;
            Glance is asked with the context.
        :raises AcceleratorError: it can't have it; nothing remains.
        """

        @utils.synchronized(uuid)
        def attach() -> dict[str, str]:
            instance = self._read_usable(context, uuid)
            with self._recorded(context, uuid, "attach_accelerator"):
                one = self._choose(context, instance, profile, bitstream)
                with self._undoing(context, uuid, one):
                    one = self._take(context, instance, one)
                    claim = self._make(context, instance, one)
                    plug.add(self._host, instance, claim)
                    self._note(
                        instance,
                        one,
                        attachment.AttachmentState.HERE,
                        attach_recovery.ATTACHING,
                        None,
                    )
            LOG.info("server %s got %s: %s", uuid, one.name, claim.handle)
            return {"name": one.name, "device": claim.device}

        with self._looked_after(context, uuid):
            given: dict[str, str] = attach()
        return given

    def detach_accelerator(
        self, context: Any, uuid: str, name: str
    ) -> dict[str, str]:
        """Take from a server what was attached; return what that was.

        :param name: its name, profile, device or handle; may be empty
            where only one is attached.
        :raises AcceleratorError: it can't be taken: everything is as it
            was, unless the reason says that the rest follows.
        """

        @utils.synchronized(uuid)
        def detach() -> dict[str, str]:
            instance = self._read_usable(context, uuid)
            with self._recorded(context, uuid, "detach_accelerator"):
                one = self._detach(context, instance, name)
            LOG.info("server %s gave %s back", uuid, one.name)
            return {"name": one.name, "profile": one.profile}

        with self._looked_after(context, uuid):
            taken: dict[str, str] = detach()
        return taken

    def _images_needed(self) -> set[str]:
        """Return the images that servers of this host need here."""
        held = {claim.image for claim in self._accel.claims()} - {""}
        return held | self._at_start.images()

    # -- the steps ---------------------------------------------------------

    @contextlib.contextmanager
    def _recorded(
        self, context: Any, uuid: str, action: str
    ) -> Iterator[None]:
        """Record an instance action with one event, as Nova's methods do.

        The action is in Nova's API before anything of the server changes.
        An event that can't be finished is logged: the result stands.
        """
        event = f"compute_{action}"
        objects.InstanceAction.action_start(
            context, uuid, action, want_result=False
        )
        objects.InstanceActionEvent.event_start(
            context, uuid, event, want_result=False, host=self._here
        )

        def finish(_: Any, error: BaseException | None, trace: Any) -> bool:
            with reporter.logged("can't finish event %s", event):
                objects.InstanceActionEvent.event_finish_with_failure(
                    context,
                    uuid,
                    event,
                    # Of other libraries' exceptions Nova stores the name
                    # of the class only, unless it gets the text.
                    exc_val=None if error is None else str(error),
                    exc_tb=trace,
                    want_result=False,
                )
            return False

        with contextlib.ExitStack() as stack:
            stack.push(finish)
            yield

    def _detach(
        self, context: Any, instance: Any, name: str
    ) -> attachment.Attachment:
        """Detach one attachment and release it; return it."""
        one = self._pick(instance, name)
        handles = self._handles_in(instance.uuid, one)
        booked = self._booking.read(context, instance.uuid)
        one = attachment.among(one, booked.get(one.provider, {}))
        self._note(
            instance,
            one,
            attachment.AttachmentState.GOING,
            None,
            attach_recovery.DETACHING,
        )
        with self._staying(instance, one, handles):
            plug.release(
                self._host,
                instance,
                handles,
                nova.conf.CONF.libvirt.device_detach_timeout,
            )
            plug.forget(self._host, instance, handles)
        self._finish(context, instance.uuid, one)
        return one

    def _read_usable(self, context: Any, uuid: str) -> Any:
        """Return a server that can be changed now.

        :raises ClaimError: it can't.
        """
        instance = self._read_instance(context, uuid)
        reason = ""
        if not (self._reporter.is_registered and self._booking.is_ready):
            reason = "nova-compute has just started; try again in a minute"
        elif instance.task_state is not None:
            reason = f"Nova is at work with it ({instance.task_state})"
        elif instance.vm_state not in _USABLE:
            reason = (
                f"it is {instance.vm_state}, and must be active or stopped"
            )
        if reason:
            raise errors.ClaimError(uuid, reason, public=reason)
        return instance

    def _choose(
        self, context: Any, instance: Any, profile: str, bitstream: str
    ) -> attachment.Attachment:
        """Write down what is to come, and allocate it, where there is room.

        A bitstream is brought before anything is written down: what can't
        be had, or may not be loaded, is refused with nothing to undo.

        :raises AcceleratorError: there is none; nothing remains.
        """
        root = self._accel.root
        if root is None:
            raise errors.ClaimError(instance.uuid, "this host has no name yet")
        offers = self._find_offers(context, root, profile, bitstream)
        open_ones: set[str] = set()
        asked = [
            o.group() for o in offers if not attach_candidates.objection(o)
        ]
        for group in {str(group): group for group in asked}.values():
            open_ones |= self._booking.find_candidates(
                context, root.uuid, group
            )
        booked = self._booking.read(context, instance.uuid)
        known = instance_request.attachments_of(instance)
        before = None
        for offer in attach_candidates.rank(
            offers, open_ones, self._accel.claims()
        ):
            one = attachment.Attachment(
                number=attachment.next_number(known),
                profile=offer.profile.name,
                resources=offer.resources,
                required=offer.required,
                provider=offer.provider,
                besides=booked.get(offer.provider, {}),
                bitstream=bitstream,
            )
            self._note(
                instance, one, one.state, before, attach_recovery.ATTACHING
            )
            before = attach_recovery.ATTACHING
            if self._allocate(context, instance.uuid, one):
                return one
        if before is not None:
            self._finish(context, instance.uuid, one)
        reasons = "; ".join(attach_candidates.explain(offers, open_ones))
        raise errors.ClaimError(
            instance.uuid,
            f"no device of {self._here} can give {profile} now:"
            f" {reasons or 'others were faster'}",
            public=f"no room on its host for {profile} now",
        )

    def _find_offers(
        self,
        context: Any,
        root: providers.ProviderRoot,
        profile: str,
        bitstream: str,
    ) -> tuple[attach_candidates.AttachCandidate, ...]:
        """Return what can be tried, with the bitstream if one is named."""
        find = functools.partial(attach_candidates.find, profile, root)
        offers = find(self._accel.host.state, bool(bitstream))
        if not bitstream:
            return offers
        found = self._images.fetch(context, {bitstream}, self._images_needed())
        # The host may have changed while it came.
        offers = find(self._accel.host.state, bool(bitstream))
        return attach_candidates.loaded(offers, found[bitstream])

    def _allocate(
        self, context: Any, uuid: str, one: attachment.Attachment
    ) -> bool:
        """Return whether Placement gave it; False where others had it.

        :raises ServiceError: Placement can't be asked; nothing remains.
        """
        with self._undoing(context, uuid, one):
            try:
                self._booking.allocate(context, uuid, one.provider, one.total)
            except errors.ServiceError as error:
                if error.status != _CONFLICT:
                    raise
                LOG.info("%s; the next device is tried", error)
                return False
        return True

    def _take(
        self, context: Any, instance: Any, one: attachment.Attachment
    ) -> attachment.Attachment:
        """Claim a slot; return the attachment with it."""
        found: list[attachment.Attachment] = []

        def write(slot: model.Slot) -> None:
            found.append(attachment.with_slot(one, slot.identifier))
            attach_recovery.write(instance, found[0])

        self._booking.take_slot(instance, one.provider, one.resources, write)
        return found[0]

    def _make(
        self, context: Any, instance: Any, one: attachment.Attachment
    ) -> model.Claim:
        """Make the device, beside what the server has; return its claim."""
        found = self._accel.ensure(
            instance.uuid,
            instance_request.groups_of(instance),
            slots.below(
                self._accel.root, slots.of_resources(instance.resources)
            ),
            self._booking.read(context, instance.uuid),
            instance_request.recall(self._images, instance),
        )
        return next(
            claim for claim in found if attach_recovery.is_of(claim, one)
        )

    def _note(
        self,
        instance: Any,
        one: attachment.Attachment,
        state: attachment.AttachmentState,
        before: str | None,
        after: str | None,
    ) -> None:
        """Write down how far an attachment is, and the task state.

        :param before: the task state that the server must have.
        :raises ClaimError: Nova is at work with the server by now, or was
            since it was read.
        """
        expected = {"expected_task_state": [before]}
        try:
            if before is None:  # a whole move may lie between, unseen
                self._read_instance(
                    nova_context.get_admin_context(), instance.uuid
                )
                expected["expected_vm_state"] = [instance.vm_state]
            attach_recovery.write(instance, attachment.in_state(one, state))
            instance.task_state = after
            instance.save(**expected)
        except (
            exception.InstanceUpdateConflict,
            exception.InstanceNotFound,
        ) as error:
            reason = "Nova is at work with it"
            raise errors.ClaimError(
                instance.uuid, f"{reason}: {error}", public=reason
            ) from error

    def _pick(self, instance: Any, name: str) -> attachment.Attachment:
        """Return the one attachment that somebody means.

        :raises ClaimError: it is the flavor's, or nobody's, or several.
        """
        known = instance_request.attachments_of(instance)
        found = [
            one
            for one in known
            if not name
            or name in self._words(instance.uuid, one)
            or mdev_names.is_spelling(name, one.profile)
        ]
        if len(found) == 1:
            return found[0]
        told = ", ".join(one.name for one in known) or "nothing"
        if found:
            reason = f"several are meant; name one of {told}"
        elif name and any(
            name in (c.device, c.handle)
            or mdev_names.is_spelling(name, c.profile)
            for c in self._accel.claims_of(instance.uuid)
        ):
            reason = (
                f"{name} belongs to its flavor, and goes with a resize only;"
                f" attached is {told}"
            )
        else:
            reason = f"{name or 'nothing'} is not attached to it, but {told}"
        raise errors.ClaimError(instance.uuid, reason, public=reason)

    def _words(self, uuid: str, one: attachment.Attachment) -> frozenset[str]:
        devices = {
            word
            for claim in self._accel.claims_of(uuid)
            if attach_recovery.is_of(claim, one)
            for word in (claim.device, claim.handle)
        }
        return frozenset({one.name, *one.required, *devices})

    @contextlib.contextmanager
    def _staying(
        self, instance: Any, one: attachment.Attachment, handles: Any
    ) -> Iterator[None]:
        """Leave a server what its guest, or libvirt, does not give away."""
        with contextlib.ExitStack() as undo:
            undo.callback(
                self._note,
                instance,
                one,
                attachment.AttachmentState.HERE,
                attach_recovery.DETACHING,
                None,
            )
            undo.callback(self._restore, instance, one, handles)
            yield
            undo.pop_all()

    def _restore(
        self, instance: Any, one: attachment.Attachment, handles: Any
    ) -> None:
        with reporter.logged("can't put %s back", one.name):
            plug.restore(self._host, instance, handles)
