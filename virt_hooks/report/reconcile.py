# SPDX-License-Identifier: Apache-2.0
"""Background pass over Placement inside nova-compute.

Nova's periodic task sends the changes of this service. This pass also
reads changes that others made in Placement, and devices that were added to
or removed from the host. It holds none of Nova's locks.

Packages extend the status of the passes by entry points of the group
``nova_accel.status_extensions``, classes that take an ``ExtensionContext``:
samples of usage and metrics are one.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from nova_accel import model
from nova_accel.config import conf, extensions
from nova_accel.host.state import device_notes, notes
from nova_accel.host.sysfs import udev
from placement_sync.client import (
    nova_client,
    resource_providers,
    sdk_errors,
)
from placement_sync.daemon import heartbeat, loop, operations
from placement_sync.sync import sync_pass
from virt_hooks import nova_private
from virt_hooks.report import background_pass
from virt_hooks.spawn import lifecycle

GROUP = "nova_accel.status_extensions"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionContext:
    """Objects of one nova-compute that an extension may use.

    ``operations`` counts operations on servers. ``read_projects`` returns the
    known projects by server, without I/O.
    """

    settings: conf.Settings
    accel: lifecycle.Lifecycle
    beat: heartbeat.Heartbeat
    operations: operations.Operations
    read_projects: Callable[[], Mapping[str, str]]


class StatusExtension(Protocol):
    """Reader of each new status, with work of its own."""

    def start(self) -> None:
        """Begin, before the first pass."""

    def stop(self) -> None:
        """End, after the last pass."""

    def publish(self, status: heartbeat.Status) -> None:
        """Publish the status of a new pass."""

    def update(self, status: heartbeat.Status) -> None:
        """Publish a status whose pass was published before."""


LOG = logging.getLogger(__name__)

# Seconds that the end of the service waits for a running pass: Nova gives
# its drivers half a minute at least (nova/conf/base.py,
# manager_shutdown_timeout).
_STOP_S = 5.0
_WRITER = "nova-compute"
# Number of extra passes after a device offers less than before: a driver
# binds it within two seconds, and a uevent may be lost.
_MAX_EXTRA_PASSES = 3
# Root of this machine's own kernel files; udev reports its devices only.
_OWN_ROOT = "/"


class Reconciler:
    """``background_pass.BackgroundPass`` that nova-compute loads."""

    def __init__(self, context: background_pass.PassContext) -> None:
        """Start no thread yet."""
        self._context = context
        self._reporter = context.reporter
        self._accel = self._reporter.accel
        self._settings = conf.read_settings(context.options)
        self._synchronizer: sync_pass.Synchronizer | None = None
        self._wake_ups = self._reporter.wake_ups
        self._heartbeat = heartbeat.Heartbeat(
            self._settings.state_dir,
            _WRITER,
            self._settings.sync.interval,
            self._publish_status,
            self._update_status,
        )
        registered: Mapping[str, StatusExtension] = extensions.build(
            GROUP,
            ExtensionContext(
                settings=self._settings,
                accel=self._accel,
                beat=self._heartbeat,
                operations=self._reporter.measured,
                read_projects=context.read_projects,
            ),
        )
        self._extensions = registered.values()
        #: Problems that were logged.
        self._problems: frozenset[model.Problem] = frozenset()
        #: Devices that offered anything in the last pass.
        self._offered: frozenset[str] = frozenset()
        self._extra_passes = 0
        self._loop: loop.Loop | None = None
        self._udev_monitor: udev.UdevMonitor | None = None

    def start(self) -> None:
        seconds = self._settings.sync.interval
        if not seconds or self._loop is not None:
            return
        for extension in self._extensions:
            extension.start()
        drained = device_notes.DrainNotes(self._settings.state_dir)
        self._loop = loop.Loop(
            self.run,
            seconds,
            watch=notes.NoteWatch(drained.path).has_changed,
            wake_ups=self._wake_ups,
        )
        self._loop.start()
        if self._settings.root == _OWN_ROOT:
            self._udev_monitor = udev.UdevMonitor(
                self._wake_ups.wake, log=self._accel.uevents
            )
            self._udev_monitor.start()

    def record_checks(self, names: Iterable[str]) -> None:
        self._heartbeat.record_checks(names)

    def stop(self) -> None:
        if self._udev_monitor is not None:
            self._udev_monitor.stop()
        if self._loop is not None:
            self._loop.stop(_STOP_S)
        for extension in self._extensions:
            extension.stop()

    def run(self) -> sync_pass.PassResult | None:
        """Run one pass, and return its result.

        None before Nova has reported the node itself, and before claims
        and hostdevs were read.

        :raises AcceleratorError: Placement can't be reached.
        """
        if condition := self._get_awaited_condition():
            self._heartbeat.record_waiting(condition)
            return None
        with self._heartbeat as beat:
            self._context.refresh()
            desired, host = self._reporter.read_desired()
            result = self._open_placement().run(
                desired,
                host,
                is_shared=True,
                reread=self._reporter.read_desired,
            )
            self._reporter.note_pass(
                desired.root.uuid, result.calls, result.present
            )
            self._log_problems(result)
            self._repeat_if_fewer_offer(host)
            beat.record_pass(
                result,
                host,
                desired,
                self._accel.claims(),
                self._accel.host.gpus,
                self._context.read_projects(),
            )
        self._context.recover()
        return result

    def _open_placement(self) -> sync_pass.Synchronizer:
        """Return the writer of passes, which has a client of its own."""
        if self._synchronizer is None:
            limit = self._context.options.placement.timeout
            seconds = limit or sdk_errors.ANSWER_SECONDS
            client = nova_client.NovaClient(
                functools.cache(lambda: nova_private.open_placement(seconds)),
                build_error=sdk_errors.build_error,
            )
            self._synchronizer = sync_pass.Synchronizer(
                resource_providers.PlacementClient(client)
            )
        return self._synchronizer

    def _get_awaited_condition(self) -> str:
        """Return the condition that passes wait for, empty for none."""
        if not self._reporter.is_registered:
            return "for nova-compute to register its node"
        if not self._accel.is_ready:
            return "for nova-compute to read claims and domains"
        if self._context.is_adopting():
            return "for nova-compute to adopt this host's servers"
        return ""

    def _repeat_if_fewer_offer(self, host: model.HostState) -> None:
        """Run another pass if a device does not offer anything any more.

        Its driver may be binding it just now, after a guest started or
        stopped.
        """
        offered = frozenset(d.address for d in host.devices if d.counters)
        if self._offered <= offered or self._extra_passes >= _MAX_EXTRA_PASSES:
            self._offered, self._extra_passes = offered, 0
            return
        self._extra_passes += 1
        self._wake_ups.wake()

    def _publish_status(self, status: heartbeat.Status) -> None:
        for extension in self._extensions:
            extension.publish(status)

    def _update_status(self, status: heartbeat.Status) -> None:
        for extension in self._extensions:
            extension.update(status)

    def _log_problems(self, result: sync_pass.PassResult) -> None:
        """Log each problem once, when it appears."""
        problems = frozenset(result.problems)
        for problem in sorted(
            problems - self._problems, key=lambda p: (p.where, p.reason)
        ):
            LOG.warning("%s: %s", problem.where, problem.reason)
        self._problems = problems
