# SPDX-License-Identifier: Apache-2.0
"""Command ``placement-sync run``: one pass, a dry run, or the daemon.

The passes of one process over a host are made under a lock file.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import functools
import importlib.resources
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator

from nova_accel import errors, model
from nova_accel.cli import application, command_manager, time_options
from nova_accel.config import conf
from nova_accel.host.state import device_notes, directories, notes, state_dir
from nova_accel.model import providers
from placement_sync.cli import common_options, outside_host
from placement_sync.client import (
    nova_api,
    resource_providers,
    stock_compute,
)
from placement_sync.daemon import heartbeat, metrics, serve
from placement_sync.sync import diff, sync_pass

LOG = logging.getLogger(__name__)

WRITER = "placement-sync"
# Seconds that a pass waits for the pass of another placement-sync: enough
# for two passes over a slow Placement.
_LOCK_TIMEOUT_S = 120.0
_POLL = 0.1
_LOCK = "sync.lock"
_COMMAND = "placement-sync"
_UNIT = f"{_COMMAND}.service"
_OK, _UNDONE = 0, 1
# Names of errno in problems that a missing permission causes.
_PERMISSION_ERRORS = ("EACCES", "EPERM")


class _LockedPasses:
    """The passes of one command over one host."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        options: common_options.CommandOptions,
    ) -> None:
        """Open the host and the clients; nothing is read yet.

        :param options: ``common_options.resolve_options`` of the arguments.
        :raises AcceleratorError: an argument or a setting can't be used.
        """
        self._arguments, self._options = arguments, options
        self.is_dry: bool = arguments.is_dry
        self.interval: float = (
            arguments.interval
            or options.settings.sync.interval
            or conf.SyncSettings().interval
        )
        self._host = outside_host.open_node(
            options.settings,
            options.root,
            options.state_dir,
            is_dry=self.is_dry,
            is_lasting=not (arguments.is_once or arguments.is_dry),
            drains_dir=options.drains_dir,
        )
        self._placement = resource_providers.PlacementClient(
            common_options.open_placement(arguments, options)
        )
        #: Watches for devices that an operator drains or undrains.
        self.drains = notes.NoteWatch(
            device_notes.DrainNotes(options.drains_dir).path
        )
        self._sync = sync_pass.Synchronizer(self._placement)
        self._compute, _ = common_options.open_compute(arguments, options)
        self._stock: stock_compute.StockComputeWatch | None = None
        self._is_closed = False
        self._heartbeat = self._open_heartbeat()
        self._root_name = "", ""
        self._was_complete = False
        self.root: providers.ProviderRoot | None = None
        self.host_problems: tuple[model.Problem, ...] = ()

    def run(self) -> sync_pass.PassResult:
        """Run a pass, as the only placement-sync of this host.

        :raises AcceleratorError: the pass failed.
        """
        if self._heartbeat is None:
            return self._run_pass()[0]
        with self._heartbeat, hold_lock(self._options):
            result, view = self._run_pass()
            self._heartbeat.record_pass(
                result, view.host, view.tree, view.claims
            )
            return result

    def _run_pass(self) -> tuple[sync_pass.PassResult, outside_host.HostView]:
        root = self._find_root()
        live = _LiveView(self._host, root, self._is_run_without_us(root))
        self.root = root
        result = self._sync.run(
            live.view.tree,
            live.view.host,
            is_dry=self.is_dry,
            create_root=self._arguments.is_created,
            is_shared=live.view.is_shared,
            reread=live.reread,
        )
        self.host_problems = live.view.host.problems
        self._was_complete = result.is_ok
        return result, live.view

    def _is_run_without_us(self, root: providers.ProviderRoot) -> bool:
        """Return whether nova-compute of the host is proved to be stock.

        False where Nova can't be asked: that proves nothing.
        """
        if self._options.state_dir is None:
            return False
        if self._stock is None or self.root != root:
            self._stock = stock_compute.StockComputeWatch(
                self._options.state_dir,
                functools.partial(
                    nova_api.read_last_report, self._compute, root.uuid
                ),
            )
        try:
            is_closed = self._stock.is_proved()
        except errors.AcceleratorError as error:
            LOG.debug("nova-compute of %s: %s", root.name, error)
            is_closed = False
        if is_closed and not self._is_closed:
            LOG.error(
                "nova-compute of %s runs without nova-accel, and would start"
                " servers without their devices: the resource providers of"
                " the host are closed (reserved = total); set compute_driver"
                " = accel.AccelLibvirtDriver and restart it, or remove"
                " nova-accel as the manual says",
                root.name,
            )
        self._is_closed = is_closed
        return is_closed

    def _find_root(self) -> providers.ProviderRoot:
        """Return the compute node.

        Placement is read for it again when its name or uuid changes, and
        after a pass that was not complete.
        """
        arguments, options, host = self._arguments, self._options, self._host
        name = outside_host.resolve_root_name(arguments, options, host)
        if self.root and self._was_complete and name == self._root_name:
            return self.root
        self._root_name, self._was_complete = name, False
        return outside_host.find_root(
            arguments, options, host, self._placement, arguments.is_created
        )

    def _open_heartbeat(self) -> heartbeat.Heartbeat | None:
        """Return the status file of the passes; None for a dry run.

        :raises ConfigurationError: the metrics can't be published.
        """
        if self.is_dry or self._options.state_dir is None:
            return None
        with contextlib.suppress(OSError):
            state_dir.remove_partial_files(self._options.state_dir)
        arguments, settings = self._arguments, self._options.settings.sync
        published = metrics.Metrics(
            arguments.textfile or settings.metrics_textfile
        )
        return heartbeat.Heartbeat(
            self._options.state_dir,
            WRITER,
            read_daemon_interval(self._options.state_dir)
            if arguments.is_once
            else self.interval,
            published.publish,
        )


class _LiveView:
    """View of a host that the pass reads again, once it has the tree.

    nova-compute may have made a claim since.
    """

    def __init__(
        self,
        host: outside_host.OutsideHost,
        root: providers.ProviderRoot,
        is_closed: bool,
    ) -> None:
        """:param is_closed: reserve all units."""
        self._host, self._root, self._is_closed = host, root, is_closed
        self.view = self._read()

    def _read(self) -> outside_host.HostView:
        view = self._host.read_view(self._root)
        if not self._is_closed:
            return view
        return dataclasses.replace(view, tree=diff.close(view.tree))

    def reread(self) -> tuple[providers.ProviderTree, model.HostState]:
        self.view = self._read()
        return self.view.tree, self.view.host


def read_daemon_interval(state_dir: str) -> float:
    """Return the interval of a running daemon, or 0 without one.

    The daemon and a single pass share a status file.
    """
    for status in heartbeat.read(state_dir):
        if status.writer == WRITER and status.interval_s and status.pid:
            with contextlib.suppress(ProcessLookupError):
                with contextlib.suppress(PermissionError):
                    os.kill(status.pid, 0)  # fails without such a process
                return status.interval_s
    return 0.0


@contextlib.contextmanager
def hold_lock(
    options: common_options.CommandOptions, timeout_s: float = _LOCK_TIMEOUT_S
) -> Iterator[None]:
    """Hold the lock file of this host's passes.

    nova-compute does not use the lock: its reports and a pass agree.

    :param timeout_s: maximum wait for the pass of another process.
    :raises BusyError: another process holds the lock all that time.
    :raises ConfigurationError: the directory can't have a lock file.
    """
    state_dir = options.drains_dir
    path = os.path.join(state_dir, _LOCK)
    try:
        descriptor = _open_lock(state_dir)
    except OSError as error:
        raise common_options.build_unwritable_error(options, error) from error
    try:
        _wait_for_lock(descriptor, path, timeout_s)
        yield
    finally:
        os.close(descriptor)


def _open_lock(state_dir: str) -> int:
    """Open the lock file; only root and nova-compute's user can open it.

    :raises OSError: it can't be opened.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with directories.open_directory(state_dir, make_parents=True) as directory:
        try:
            new = flags | os.O_CREAT | os.O_EXCL
            descriptor = os.open(_LOCK, new, 0o600, dir_fd=directory)
        except FileExistsError:
            # An existing file keeps its owner: it may be a hard link.
            return os.open(_LOCK, flags, dir_fd=directory)
        if os.geteuid() == 0:
            owner = os.fstat(directory)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        return descriptor


def _wait_for_lock(descriptor: int, path: str, timeout_s: float) -> None:
    """Lock the file; the kernel unlocks it when the process ends."""
    until = time.monotonic() + timeout_s
    is_reported = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise errors.BusyError(path, timeout_s) from None
        else:
            return
        if not is_reported:
            is_reported = True
            print(
                "placement-sync: waiting for the pass of another"
                " placement-sync",
                file=sys.stderr,
            )
        time.sleep(_POLL)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    common_options.add_arguments(parser)
    common_options.add_compute_endpoint(parser)
    parser.add_argument(
        "--once",
        action="store_true",
        dest="is_once",
        help="make one pass, print the changes, and exit",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        dest="is_dry",
        help="print the calls that one pass would make, one per line, and"
        " write nothing to Placement or to this host",
    )
    parser.add_argument(
        "--create-root",
        action="store_true",
        dest="is_created",
        help="create the compute node's resource provider if Placement does"
        " not have it, for a host without nova-compute",
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        metavar="SECONDS",
        help="set the seconds between two passes, which vary by up to a"
        " tenth (default [nova_accel] sync_interval, or 60 if that is 0)",
    )
    _add_metrics_arguments(parser)
    parser.add_argument(
        "--print-unit",
        action="store_true",
        dest="is_unit",
        help="print a systemd unit that starts this placement-sync; enable"
        " it with: placement-sync run --print-unit >"
        " /etc/systemd/system/placement-sync.service && systemctl enable"
        " --now placement-sync",
    )


def _add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-textfile",
        dest="textfile",
        metavar="FILE",
        help="write Prometheus metrics to this file (default [nova_accel]"
        " metrics_textfile); a nova-compute on this host needs another file",
    )


def _seconds(text: str) -> float:
    number = time_options.parse_seconds(text)
    if not number:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return number


def _run(arguments: argparse.Namespace) -> application.Output:
    """Run one pass or the daemon; return the output and the exit status.

    :raises AcceleratorError: an argument can't be used, or the pass failed.
    """
    if arguments.is_unit:
        return _build_unit(), _OK
    is_single = arguments.is_once or arguments.is_dry
    if arguments.is_json and not is_single:
        raise command_manager.UsageError(
            "-f json is the format of a single pass; add --once or --dry-run"
        )
    options = common_options.resolve_options(arguments)
    if is_single:
        with _warnings_on_stderr():
            passes = _LockedPasses(arguments, options)
            result = passes.run()
        print_hint(passes.host_problems)
        return application.Document(
            lambda: _as_dict(passes, result),
            lambda: _as_text(passes, result),
            lambda: _OK if result.is_ok else _UNDONE,
        )
    passes = _LockedPasses(arguments, options)
    serve.serve(
        passes.run,
        passes.interval,
        lambda: passes.host_problems,
        passes.drains.has_changed,
    )
    return "", _OK


@contextlib.contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Print warnings of the log, because a single pass has no log file."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("placement-sync: %(message)s"))
    loggers = [logging.getLogger(n) for n in ("nova_accel", "placement_sync")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _as_text(passes: _LockedPasses, result: sync_pass.PassResult) -> str:
    lines = [str(call) for call in result.calls]
    lines += [f"left undone: {p.where}: {p.reason}" for p in result.problems]
    lines += [f"problem: {p.where}: {p.reason}" for p in passes.host_problems]
    root = passes.root.name if passes.root else "?"
    verb = "would be made" if passes.is_dry else "made"
    lines.append(
        f"{root}: {len(result.calls)} calls {verb},"
        f" {result.reads} reads, {result.writes} writes,"
        f" {len(result.problems)} left undone, {result.seconds:.1f} s"
    )
    return "\n".join(lines) + "\n"


def _as_dict(
    passes: _LockedPasses, result: sync_pass.PassResult
) -> dict[str, object]:
    root = passes.root
    return {
        "host": {"name": root.name, "uuid": root.uuid} if root else None,
        "dry_run": passes.is_dry,
        "calls": [str(call) for call in result.calls],
        "reads": result.reads,
        "writes": result.writes,
        "attempts": result.attempts,
        "seconds": round(result.seconds, 3),
        "problems": _format_problems(result.problems),
        "host_problems": _format_problems(passes.host_problems),
    }


def _format_problems(
    problems: Iterable[model.Problem],
) -> list[dict[str, str]]:
    return [{"where": p.where, "reason": p.reason} for p in problems]


def print_hint(problems: Iterable[model.Problem]) -> None:
    """Print a hint to a user without permission to read kernel files."""
    denied = [
        problem
        for problem in problems
        if any(name in problem.reason for name in _PERMISSION_ERRORS)
    ]
    if denied and os.geteuid() != 0:
        print(
            f"placement-sync: this user may not read {len(denied)} kernel"
            f" files; the first is {denied[0].where}: {denied[0].reason};"
            " run it as root",
            file=sys.stderr,
        )


def _build_unit() -> str:
    """Return the systemd unit with the path of the installed command."""
    unit = importlib.resources.files("placement_sync") / "systemd" / _UNIT
    command = os.path.abspath(sys.argv[0])
    if os.path.basename(command) != _COMMAND:
        command = os.path.join(os.path.dirname(sys.executable), _COMMAND)
    return unit.read_text().replace(
        f"ExecStart={_COMMAND}", f"ExecStart={command}"
    )


ACTION = application.Action(_add_arguments, _run)
