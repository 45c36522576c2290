# SPDX-License-Identifier: Apache-2.0
"""LockedPasses of one process over one host, under a lock."""

import argparse
import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator

from nova_accel import errors, model
from nova_accel.config import conf
from nova_accel.host.state import directories, drains, notes
from nova_accel.model import providers
from placement_sync.cli import common_options, outside_host
from placement_sync.client import resource_providers
from placement_sync.daemon import heartbeat, metrics
from placement_sync.sync import sync_pass

WRITER = "placement-sync"
# How long a pass waits for that of another placement-sync, in seconds:
# two of them that meet a slow Placement.
PATIENCE = 120.0
_POLL = 0.1
_LOCK = "sync.lock"


class LockedPasses:
    """The passes of one command over one host."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        chosen: common_options.CommandOptions,
    ) -> None:
        """Read what the arguments name; nothing of the host yet.

        :param chosen: what ``common_options.choose`` makes of the arguments.
        :raises AcceleratorError: something of that can't be used.
        """
        self._arguments, self._chosen = arguments, chosen
        self.is_dry: bool = arguments.is_dry
        self.interval: float = (
            arguments.interval
            or chosen.settings.sync.interval
            or conf.SyncSettings().interval
        )
        self._host = outside_host.open_node(
            chosen.settings,
            chosen.root,
            chosen.state_dir,
            is_dry=self.is_dry,
            is_lasting=not (arguments.is_once or arguments.is_dry),
            drains_dir=chosen.drains_dir,
        )
        self._placement = resource_providers.PlacementClient(
            common_options.open_door(arguments, chosen)
        )
        #: Tells when an operator has drained or undrained a device.
        self.drains = notes.NoteWatch(
            drains.DrainNotes(chosen.drains_dir).place
        )
        self._sync = sync_pass.Synchronizer(self._placement)
        self._beat = self._heartbeat()
        self._named = "", ""
        self._is_right = False
        self.root: providers.ProviderRoot | None = None
        self.host_problems = chosen.settings.problems

    def run(self) -> sync_pass.PassResult:
        """Make a pass, as the only placement-sync of this host.

        :raises AcceleratorError: it could not be made.
        """
        if self._beat is None:
            return self._pass()[0]
        with self._beat, alone(self._chosen):
            result, view = self._pass()
            self._beat.beat(result, view.host, view.tree, view.claims)
            return result

    def _pass(self) -> tuple[sync_pass.PassResult, outside_host.HostView]:
        root = self._find_root()
        view = self._host.view(root)
        self.root = root

        def look() -> tuple[providers.ProviderTree, model.HostState]:
            """Look again: nova-compute may have made a claim since."""
            nonlocal view
            view = self._host.view(root)
            return view.tree, view.host

        result = self._sync.run(
            view.tree,
            view.host,
            is_dry=self.is_dry,
            create_root=self._arguments.is_created,
            is_shared=view.is_shared,
            anew=look,
        )
        self.host_problems = (
            *self._chosen.settings.problems,
            *view.host.problems,
        )
        self._is_right = result.is_ok
        return result, view

    def _find_root(self) -> providers.ProviderRoot:
        """Return the compute node.

        Placement is asked for it again when another one is named, and
        when the last pass was not all right.
        """
        arguments, chosen, host = self._arguments, self._chosen, self._host
        named = common_options.name_root(arguments, chosen, host)
        if self.root and self._is_right and named == self._named:
            return self.root
        self._named, self._is_right = named, False
        return common_options.find_root(
            arguments, chosen, host, self._placement, arguments.is_created
        )

    def _heartbeat(self) -> heartbeat.Heartbeat | None:
        """Return what notes each pass; a dry one is not noted.

        :raises ConfigurationError: the metrics can't be shown.
        """
        if self.is_dry or self._chosen.state_dir is None:
            return None
        given, settings = self._arguments, self._chosen.settings.sync
        port = settings.metrics_port if given.port is None else given.port
        shown = metrics.Metrics(
            given.textfile or settings.metrics_textfile,
            0 if given.is_once else port,
        )
        return heartbeat.Heartbeat(
            self._chosen.state_dir,
            WRITER,
            _promised(self._chosen.state_dir)
            if given.is_once
            else self.interval,
            shown.publish,
        )


def _promised(state_dir: str) -> float:
    """Return the interval of a daemon that runs beside a single pass.

    The two have one status; 0 if there is no daemon.
    """
    for one in heartbeat.read(state_dir):
        if one.writer == WRITER and one.interval_s and one.pid:
            with contextlib.suppress(ProcessLookupError):
                with contextlib.suppress(PermissionError):
                    os.kill(one.pid, 0)  # only asks whether it is there
                return one.interval_s
    return 0.0


@contextlib.contextmanager
def alone(
    chosen: common_options.CommandOptions, patience_s: float = PATIENCE
) -> Iterator[None]:
    """Hold the lock of this host's passes.

    Nova-compute does not take it: two writers of one host agree.

    :param patience_s: how long to wait for another one, in seconds.
    :raises BusyError: it was held all the time.
    :raises ConfigurationError: there can be no lock in this directory.
    """
    state_dir = chosen.drains_dir
    path = os.path.join(state_dir, _LOCK)
    try:
        descriptor = _open(state_dir)
    except OSError as error:
        raise common_options.unwritable(chosen, error) from error
    try:
        _take(descriptor, path, patience_s)
        yield
    finally:
        os.close(descriptor)


def _open(state_dir: str) -> int:
    """Return an open lock that only root and nova-compute's user can take.

    :raises OSError: it can't be opened.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with directories.opened(state_dir, is_made=True) as place:
        try:
            new = flags | os.O_CREAT | os.O_EXCL
            descriptor = os.open(_LOCK, new, 0o600, dir_fd=place)
        except FileExistsError:
            # A file that was there keeps its owner: it may be a hard link.
            return os.open(_LOCK, flags, dir_fd=place)
        if os.geteuid() == 0:
            owner = os.fstat(place)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        return descriptor


def _take(descriptor: int, path: str, patience_s: float) -> None:
    """Wait for a lock that the kernel takes back when its holder ends."""
    until = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise errors.BusyError(path, patience_s) from None
        else:
            return
        if not is_told:
            is_told = True
            print(
                "placement-sync: another one is making a pass; waiting",
                file=sys.stderr,
            )
        time.sleep(_POLL)
