# SPDX-License-Identifier: Apache-2.0
"""Instance actions of hot attach and detach, in Nova's database."""

import contextlib
from collections.abc import Iterator
from typing import Any

from nova import exception, objects

from nova_accel import errors
from virt_hooks import error_guards

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
