# SPDX-License-Identifier: Apache-2.0
"""Hot attach and detach as instance actions, and as notifications."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from nova import exception, objects

from nova_accel import errors, model
from nova_accel.model import attachment
from virt_hooks import error_guards
from virt_hooks.report import notifications

ATTACH, DETACH = "attach_accelerator", "detach_accelerator"


@contextlib.contextmanager
def recorded(
    context: Any, uuid: str, action: str, host: str
) -> Iterator[None]:
    """Record an instance action with one event, as Nova's methods do.

    The action is in Nova's API before anything of the server changes.
    If the event can't be finished, the error is logged only.

    :param context: its request has no other action of the server: Nova
        finds an action by its request.
    :param host: name of this host in Nova.
    """
    event = f"compute_{action}"
    objects.InstanceAction.action_start(
        context, uuid, action, want_result=False
    )
    objects.InstanceActionEvent.event_start(
        context,
        uuid,
        event,
        want_result=False,
        host=host,
    )

    def finish(_: Any, error: BaseException | None, trace: Any) -> bool:
        with error_guards.log_errors("can't finish event %s", event):
            objects.InstanceActionEvent.event_finish_with_failure(
                context,
                uuid,
                event,
                exc_val=None if error is None else _describe(error),
                exc_tb=trace,
                want_result=False,
            )
        return False

    with contextlib.ExitStack() as stack:
        stack.push(finish)
        yield


def _describe(error: BaseException) -> str:
    """Return the text of an error, as Nova stores it for its users.

    Of other libraries' exceptions that is the name of the class: a text of
    them may name internal hosts.
    """
    if isinstance(error, errors.AcceleratorError | exception.NovaException):
        return str(error)
    return type(error).__name__


def build_attachment(
    instance: Any, profile: str, name: str = ""
) -> dict[str, Any]:
    """Return the payload of an attach or detach that begins.

    :param profile: as requested, empty for a detach.
    :param name: of the attachment to detach, as requested.
    """
    return {
        "instance_uuid": instance.uuid,
        "tenant_id": instance.project_id,
        "user_id": instance.user_id,
        "host": instance.host,
        "name": name,
        "profile": profile,
        "device": "",
        "partition": "",
        "resources": {},
        "reason": "",
    }


def describe(
    attached: attachment.Attachment, claims: Iterable[model.Claim]
) -> dict[str, Any]:
    """Return the fields of a payload that describe an attachment.

    :param claims: of the server; after a restart one may be missing.
    """
    places = {
        (claim.provider, claim.slot): {
            "device": claim.device,
            "partition": claim.handle,
        }
        for claim in claims
    }
    return {
        "name": attached.name,
        "profile": attached.profile,
        "resources": dict(attached.resources),
        **places.get((attached.provider, attached.slot), {}),
    }


@contextlib.contextmanager
def attachment_sent(
    context: Any, operation: str, payload: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Send the start of an operation, and its end or error.

    :param operation: ``attach`` or ``detach``.
    :param payload: of the start; yielded, so that the block adds to it.
    """

    def send_end(_: Any, error: BaseException | None, __: Any) -> None:
        if error is None:
            notifications.send(
                context, f"accelerator.{operation}.end", payload
            )
            return
        reason = type(error).__name__
        if isinstance(error, errors.AcceleratorError):
            reason = error.public
        notifications.send(
            context,
            f"accelerator.{operation}.error",
            payload | {"reason": reason},
            is_error=True,
        )

    notifications.send(context, f"accelerator.{operation}.start", payload)
    with contextlib.ExitStack() as stack:
        stack.push(send_end)
        yield payload
