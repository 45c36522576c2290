# SPDX-License-Identifier: Apache-2.0
"""Guards of the overrides: errors are logged, or become Nova's errors."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from nova import exception

from nova_accel import errors
from nova_accel.config import logs

LOG = logging.getLogger(__name__)

#: Nova's own method, with the arguments of a call to its override.
Stock = Callable[[], Any]


@contextlib.contextmanager
def log_errors(message: str, *arguments: Any) -> Iterator[None]:
    """Log any error of the block, so that stock Nova continues."""
    try:
        yield
    except Exception:
        LOG.exception(message, *arguments)


@contextlib.contextmanager
def as_nova_error(
    publish: Callable[[], object] | None = None,
    uuid: str = "",
    is_rebuilt: bool = False,
) -> Iterator[None]:
    """Raise any error of the block as one that Nova reschedules on.

    Nova stores its text as the server's fault, which the server's owner
    reads; the text for operators is logged.

    A faulty bitstream is faulty on each host: the build is aborted, and
    the user sees the reason. A server that is rebuilt on its host is not
    rescheduled either: Nova would treat it as evacuated, and remove its
    allocations.

    Any other exception than Nova's own is a defect, or of another library,
    and its text may name hosts: it is logged, and Nova's error has a general
    text.

    :param publish: called after an error; publishes the host's changes.
    :param uuid: of a server that is spawned.
    :param is_rebuilt: whether it is rebuilt on this host.
    :raises nova.exception.ComputeResourcesUnavailable: Nova reschedules.
    :raises nova.exception.BuildAbortException: Nova does not.
    """
    try:
        yield
    except errors.AcceleratorError as error:
        needs_uuid = uuid and uuid not in str(error)
        logs.error(
            LOG, "%s%s", f"server {uuid}: " if needs_uuid else "", error
        )
        if publish is not None:
            publish()
        is_final = is_rebuilt or not getattr(error, "is_local", True)
        raise build_nova_error(
            error.public, uuid if is_final else ""
        ) from error
    except exception.NovaException:
        raise
    except Exception as error:
        LOG.exception("can't provide the accelerators of server %s", uuid)
        reason = errors.AcceleratorError("").public
        raise build_nova_error(reason, uuid if is_rebuilt else "") from error


def build_nova_error(reason: str, aborted: str) -> Exception:
    """Return Nova's error.

    :param aborted: uuid of a server whose build is aborted, empty for one
        that may be rescheduled.
    """
    error: Exception = exception.ComputeResourcesUnavailable(reason=reason)
    if aborted:
        error = exception.BuildAbortException(
            instance_uuid=aborted, reason=reason
        )
    return error
