# SPDX-License-Identifier: Apache-2.0
"""Status files of the processes that run passes.

Each writer, nova-compute or placement-sync, has one JSON file below
state_dir. Every user may read it; reading needs no Placement.
"""

import dataclasses
import json
import logging
import os
import threading
import time
import types
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from nova_accel import errors, model
from nova_accel.config import library_version, logs
from nova_accel.discovery import vgpu_guests
from nova_accel.host import nvml_gpus
from nova_accel.host.state import directories
from nova_accel.model import providers, usage
from placement_sync.daemon import status, usage_rows
from placement_sync.sync import sync_pass

LOG = logging.getLogger(__name__)

Status = status.Status

_NO_GPUS: Mapping[str, nvml_gpus.NvmlGpu] = types.MappingProxyType({})
_DIRECTORY = "status"
_SUFFIX = ".json"
# Readable by monitoring: the files contain no secret.
_MODE = 0o644
# A device takes some kilobytes.
_MAX_BYTES = 64 << 20


class Heartbeat:
    """Status of one writer on one host. Thread-safe.

    As a context manager it surrounds a pass, and records the failure of a
    pass that raises::

        with beat:
            result = synchronizer.run(desired, host)
            beat.record_pass(result, host, desired, claims)

    It never raises: a failed write of the file is logged once.
    """

    def __init__(
        self,
        state_dir: str,
        writer: str,
        interval_s: float = 0.0,
        publish: Callable[[Status], object] | None = None,
        publish_sample: Callable[[Status], object] | None = None,
    ) -> None:
        """Continue from the status that the writer stored before a restart.

        :param writer: ``nova-compute`` or ``placement-sync``.
        :param interval_s: seconds between passes, 0 for a single pass.
        :param publish: called with the status of each new pass.
        :param publish_sample: called with the status of each new sample.
        """
        self.path = _path(state_dir, writer)
        self._publish = publish
        self._publish_sample = publish_sample
        self._sample = usage.UsageSample()
        self._lock = threading.Lock()
        self._pass_started: float | None = None
        self._last_reason = ""
        before = _read(self.path, writer)
        self._status = dataclasses.replace(
            before if before and not before.is_broken else Status(),
            writer=writer,
            version=library_version.read(),
            pid=os.getpid(),
            started=time.time(),
            interval_s=interval_s,
            waiting="",
            sampled=None,
            device_usage=(),
            sample_problems=(),
        )

    def __enter__(self) -> Self:
        with self._lock:
            self._pass_started = time.time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if error is not None:
            is_own = isinstance(error, errors.AcceleratorError)
            self.record_failure(
                str(error) if is_own else f"{type(error).__name__}: {error}"
            )
        with self._lock:
            self._pass_started = None

    def record_pass(
        self,
        outcome: sync_pass.PassResult,
        host: model.HostState,
        tree: providers.ProviderTree,
        claims: Iterable[model.Claim] = (),
        gpus: Mapping[str, nvml_gpus.NvmlGpu] = _NO_GPUS,
        projects: Mapping[str, str] | None = None,
    ) -> Status:
        """Record a pass that ended, and return the new status.

        :param host: the snapshot that the pass used.
        :param tree: the desired provider tree of the host.
        :param claims: the claims of the host's servers.
        :param gpus: NVML's last answers.
        :param projects: ids of projects by server; None for a writer that
            does not report servers.
        """
        host_claims = tuple(claims)
        now = time.time()
        return self._update(
            root=tree.root,
            attempted=self._get_attempt_time(now - outcome.seconds),
            succeeded=now,
            seconds=outcome.seconds,
            reads=outcome.reads,
            writes=outcome.writes,
            calls=status.count_calls(outcome.calls),
            devices=status.count_devices(host, tree, host_claims),
            use=status.count_use(host, tree, host_claims),
            problems=(*host.problems, *outcome.problems),
            undone=len(outcome.problems),
            error="",
            guests=vgpu_guests.list_guests(host_claims, gpus),
            room=usage_rows.list_rooms(host, tree, host_claims),
            servers=(
                ()
                if projects is None
                else usage_rows.list_servers(
                    host, host_claims, projects, self._sample
                )
            ),
        )

    def record_sample(
        self,
        sample: usage.UsageSample,
        host: model.HostState,
        claims: Iterable[model.Claim],
        projects: Mapping[str, str],
    ) -> None:
        """Record a sample of the devices; the last pass stays as it is.

        Figures that the sample does not have disappear.

        :param host: the host, as it was last read.
        :param claims: the present claims of the host's servers.
        :param projects: ids of projects by server.
        """
        with self._lock:
            self._sample = sample
            new = self._status = dataclasses.replace(
                self._status,
                sampled=time.time(),
                device_usage=sample.devices,
                sample_problems=sample.problems,
                servers=usage_rows.list_servers(
                    host, claims, projects, sample
                ),
            )
            self._write(new)
        if self._publish_sample is not None:
            self._publish_sample(new)

    def record_failure(self, error: str) -> Status:
        """Record a pass that failed, and return the new status.

        The host's part stays as the last complete pass recorded it.
        """
        now = time.time()
        started = self._get_attempt_time(now)
        return self._update(
            attempted=started,
            seconds=max(0.0, now - started),
            reads=0,
            writes=0,
            calls={},
            undone=0,
            error=error or "no reason given",
        )

    def record_waiting(self, condition: str) -> None:
        """Record that passes wait; the last pass stays as it was recorded.

        No pass is published. The file is written once for each condition.

        :param condition: what the passes wait for: "for ... to ...".
        """
        with self._lock:
            if self._status.waiting != condition:
                self._status = dataclasses.replace(
                    self._status, waiting=condition
                )
                self._write(self._status)

    def record_checks(self, names: Iterable[str]) -> None:
        """Record the checks of the host that failed; they stay recorded."""
        with self._lock:
            self._status = dataclasses.replace(
                self._status, failed_checks=tuple(names)
            )

    def _get_attempt_time(self, default: float) -> float:
        with self._lock:
            if self._pass_started is None:
                return default
            return self._pass_started

    def _update(self, **changed: object) -> Status:
        """Record a pass: the writer does not wait any more."""
        with self._lock:
            # mypy can't check the names of the fields; the tests do.
            new = dataclasses.replace(self._status, waiting="", **changed)  # type: ignore[arg-type]
            self._status = new
            self._write(new)
        if self._publish is not None:
            self._publish(new)
        return new

    def _write(self, new: Status) -> None:
        text = json.dumps(new.as_dict(), indent=2) + "\n"
        try:
            directories.replace_file(
                self.path, text.encode(), _MODE, make_parents=True
            )
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._last_reason:
                logs.warning(
                    LOG,
                    "Can't write the status of the passes to %s (%s);"
                    " correct [nova_accel] state_dir",
                    self.path,
                    reason,
                )
            self._last_reason = reason
        else:
            self._last_reason = ""


def read(state_dir: str) -> tuple[Status, ...]:
    """Return the status of each writer, sorted by name.

    An unreadable file gives a status with the reason as its error.

    :raises UnreadableError: the directory can't be listed.
    """
    directory = os.path.join(state_dir, _DIRECTORY)
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise errors.UnreadableError(directory, error.errno or 0) from error
    statuses = (
        _read(
            os.path.join(directory, name),
            urllib.parse.unquote(name.removesuffix(_SUFFIX)),
        )
        for name in names
        if name.endswith(_SUFFIX)
    )
    return tuple(status for status in statuses if status is not None)


def _path(state_dir: str, writer: str) -> str:
    name = urllib.parse.quote(writer, safe="")
    return os.path.join(state_dir, _DIRECTORY, f"{name}{_SUFFIX}")


def _read(path: str, writer: str) -> Status | None:
    try:
        return status.parse(directories.read_path(path, _MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = f"{path} can't be used: {error}"
    except errors.MalformedError as error:
        reason = f"{path}: {error}"
    return Status(writer=writer, error=reason, is_broken=True)
