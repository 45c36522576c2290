# SPDX-License-Identifier: Apache-2.0
"""Status file of each process that runs passes.

One file for each writer, for any user to read, without Placement.
"""

import dataclasses
import json
import logging
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from nova_accel import errors, model
from nova_accel.discovery import capture
from nova_accel.host.state import atomic_write, directories
from nova_accel.model import providers, strict_json
from placement_sync.daemon import status

LOG = logging.getLogger(__name__)

Status = status.Status

_PLACE = "status"
_SUFFIX = ".json"
# Whoever watches the host reads them: they hold no secret.
_MODE = 0o644
# Some kilobytes for each device.
_MAX_BYTES = 64 << 20


class PassOutcome(Protocol):
    """Result of a finished pass, such as ``sync_pass.PassResult``."""

    @property
    def calls(self) -> Iterable[object]:
        """Return the calls that were made."""
        ...

    @property
    def reads(self) -> int:
        """Return how many requests read."""
        ...

    @property
    def writes(self) -> int:
        """Return how many requests wrote."""
        ...

    @property
    def problems(self) -> tuple[model.Problem, ...]:
        """Return what stayed undone."""
        ...

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        ...


class Heartbeat:
    """The status of one writer on one host. Thread-safe.

    As a context manager it goes around a pass, and notes the failure of
    one that raises::

        with beat:
            result = synchroniser.run(desired, host)
            beat.beat(result, host, desired, claims)

    It never fails itself: what can't be written is logged, once.
    """

    def __init__(
        self,
        state_dir: str,
        writer: str,
        interval_s: float = 0.0,
        publish: Callable[[Status], object] | None = None,
    ) -> None:
        """Go on from what the writer left before it was started anew.

        :param writer: who passes: ``nova-compute``, ``placement-sync``.
        :param interval_s: seconds from pass to pass, 0 for single ones.
        :param publish: is given each status, too.
        """
        self.path = _path(state_dir, writer)
        self._publish = publish
        self._guard = threading.Lock()
        self._began: float | None = None
        self._said = ""
        before = _read(self.path, writer)
        self._status = dataclasses.replace(
            before if before and not before.is_broken else Status(),
            writer=writer,
            version=capture.library_version(),
            pid=os.getpid(),
            started=time.time(),
            interval_s=interval_s,
        )

    def __enter__(self) -> Self:
        with self._guard:
            self._began = time.time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            is_ours = isinstance(error, errors.AcceleratorError)
            self.fail(
                str(error) if is_ours else f"{type(error).__name__}: {error}"
            )
        with self._guard:
            self._began = None

    def beat(
        self,
        outcome: PassOutcome,
        host: model.HostState,
        tree: providers.ProviderTree,
        claims: Iterable[model.Claim] = (),
    ) -> Status:
        """Note a pass that came to its end, and return the new status.

        :param host: the reading that the pass was over.
        :param tree: the host's providers, as they should be.
        :param claims: the claims of the host's servers.
        """
        held = tuple(claims)
        now = time.time()
        return self._note(
            root=tree.root,
            attempted=self._attempted(now - outcome.seconds),
            succeeded=now,
            seconds=outcome.seconds,
            reads=outcome.reads,
            writes=outcome.writes,
            calls=status.count_calls(outcome.calls),
            devices=status.count_devices(host, tree, held),
            use=status.count_use(host, tree, held),
            problems=(*host.problems, *outcome.problems),
            undone=len(outcome.problems),
            error="",
        )

    def fail(self, error: str) -> Status:
        """Note a pass that could not be made, and return the new status.

        What was found of the host in the last one that could, stays.
        """
        now = time.time()
        began = self._attempted(now)
        return self._note(
            attempted=began,
            seconds=max(0.0, now - began),
            reads=0,
            writes=0,
            calls={},
            undone=0,
            error=error or "no reason was given",
        )

    def _attempted(self, otherwise: float) -> float:
        with self._guard:
            return otherwise if self._began is None else self._began

    def _note(self, **changed: object) -> Status:
        with self._guard:
            # mypy can't see which fields these are; the tests do.
            new = dataclasses.replace(self._status, **changed)  # type: ignore[arg-type]
            self._status = new
            self._write(new)
        if self._publish is not None:
            self._publish(new)
        return new

    def _write(self, new: Status) -> None:
        text = json.dumps(new.as_dict(), indent=2) + "\n"
        try:
            atomic_write.replace(self.path, text.encode(), _MODE, is_made=True)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._said:
                LOG.warning(
                    "the status of the passes can't be written to %s (%s);"
                    " mend [nova_accel] state_dir",
                    self.path,
                    reason,
                )
            self._said = reason
        else:
            self._said = ""


def read(state_dir: str) -> tuple[Status, ...]:
    """Return the status of each writer, sorted by their names.

    One that can't be read is returned with the reason as its error.

    :raises UnreadableError: the directory can't be listed.
    """
    place = os.path.join(state_dir, _PLACE)
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise errors.UnreadableError(place, error.errno or 0) from error
    found = (
        _read(
            os.path.join(place, name),
            urllib.parse.unquote(name.removesuffix(_SUFFIX)),
        )
        for name in names
        if name.endswith(_SUFFIX)
    )
    return tuple(one for one in found if one is not None)


def _path(state_dir: str, writer: str) -> str:
    name = urllib.parse.quote(writer, safe="")
    return os.path.join(state_dir, _PLACE, f"{name}{_SUFFIX}")


def _read(path: str, writer: str) -> Status | None:
    """Return what a file says, None where there is none."""
    try:
        text = directories.read_path(path, _MAX_BYTES).decode()
        return status.parse(strict_json.loads(text))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = f"{path} can't be used: {error}"
    except errors.MalformedError as error:
        reason = f"{path}: {error}"
    return Status(writer=writer, error=reason, is_broken=True)
