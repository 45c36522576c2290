# SPDX-License-Identifier: Apache-2.0
"""Background pass over Placement inside nova-compute.

Nova's own task sends what this service has changed. This pass also sees
what others have changed in Placement, and what came and went on the host
meanwhile; it holds none of Nova's locks.
"""

import logging
from collections.abc import Callable
from typing import Any

from nova_accel import errors, model
from nova_accel.config import conf
from nova_accel.host.state import drains, notes
from nova_accel.host.sysfs import udev
from nova_accel.model import providers
from placement_sync.client import resource_providers, rest
from placement_sync.daemon import heartbeat, loop, metrics
from placement_sync.sync import sync_pass
from virt_hooks.report import reporter
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

# How long the service waits for the pass that runs when it ends: Nova
# leaves its drivers half a minute at the least
# (nova/conf/base.py, manager_shutdown_timeout).
_STOP_S = 5.0
_WRITER = "nova-compute"
# How often a device that has faded is looked at again at once: a driver
# that binds is done in a second or two, and udev's word may be lost.
_MOST_LOOKS = 3
# Where this machine's own devices are, of which udev tells.
_OWN = "/"


class Reconciler:
    """Keeps Placement and this host in step while nova-compute runs."""

    def __init__(
        self,
        options: Any,
        accel: lifecycle.Lifecycle,
        look: Callable[[], None],
        reporter: reporter.Reporter,
        settle: Callable[[], None],
    ) -> None:
        """Start nothing yet.

        :param options: the service's ``oslo_config.cfg.ConfigOpts``.
        :param look: brings the last reading of the host up to date.
        :param settle: ends what wants Nova's tracker as well.
        """
        self._options = options
        self._accel = accel
        self._look = look
        self._reporter = reporter
        self._settle = settle
        self._settings = conf.read_settings(options)
        self._metrics: metrics.Metrics | None = None
        self._heartbeat = heartbeat.Heartbeat(
            self._settings.bitstreams.state_dir,
            _WRITER,
            self._settings.sync.interval,
            self._show,
        )
        self._synchroniser: sync_pass.Synchronizer | None = None
        self._problems: frozenset[model.Problem] = frozenset()
        self._offered: frozenset[str] = frozenset()
        self._looks = 0
        self._loop: loop.Loop | None = None
        self._doorbell: udev.UdevMonitor | None = None

    def start(self) -> None:
        """Run passes from now on, unless nova.conf says to run none."""
        seconds = self._settings.sync.interval
        if not seconds or self._loop is not None:
            return
        self._measure()
        drained = drains.DrainNotes(self._settings.bitstreams.state_dir)
        self._loop = loop.Loop(
            self.run, seconds, watch=notes.NoteWatch(drained.place).has_changed
        )
        self._loop.start()
        if self._settings.root == _OWN:
            self._doorbell = udev.UdevMonitor(self._loop.wake)
            self._doorbell.start()

    def wake(self) -> None:
        """Ask for a pass soon."""
        if self._loop is not None:
            self._loop.wake()

    def stop(self) -> None:
        """Run no more passes; the one that runs has some seconds to end."""
        if self._doorbell is not None:
            self._doorbell.stop()
        if self._loop is not None:
            self._loop.stop(_STOP_S)
        if self._metrics is not None:
            self._metrics.close()

    def run(self) -> sync_pass.PassResult | None:
        """Run one pass, and return how it went.

        None is run before Nova has reported the node itself, and before
        it is known what its servers hold.

        :raises AcceleratorError: Placement can't be had.
        """
        if not (self._accel.is_known and self._reporter.is_registered):
            return None
        with self._heartbeat as beat:
            self._look()
            desired, host = self._desire()
            result = self._connect().run(
                desired, host, is_shared=True, anew=self._desire
            )
            self._reporter.catch_up(desired, result.present, result.calls)
            self._tell(result)
            self._look_again(host)
            beat.beat(result, host, desired, self._accel.claims())
        self._settle()
        return result

    def _look_again(self, host: model.HostState) -> None:
        """Ask for another pass where a device has nothing more to offer.

        Its driver may just be binding it, when a guest is given it, or has
        given it back.
        """
        offered = frozenset(d.address for d in host.devices if d.counters)
        if self._offered <= offered or self._looks >= _MOST_LOOKS:
            self._offered, self._looks = offered, 0
            return
        self._looks += 1
        self.wake()

    def _measure(self) -> None:
        """Show metrics where nova.conf asks for them, and they can be."""
        settings = self._settings.sync
        try:
            self._metrics = metrics.Metrics(
                settings.metrics_textfile, settings.metrics_port
            )
        except errors.ConfigurationError as error:
            LOG.error("there are no metrics of the passes: %s", error)

    def _show(self, status: heartbeat.Status) -> None:
        if self._metrics is not None:
            self._metrics.publish(status)

    def _desire(self) -> tuple[providers.ProviderTree, model.HostState]:
        """Return the tree as it should be now, and what it was built from.

        Its slots can be claimed before any of it is offered.
        """
        host, desired = self._accel.host.state, self._reporter.desired()
        if desired is None:
            raise errors.AcceleratorError("the compute node is not known")
        self._reporter.lay_new_slots(desired)
        return desired, host

    def _connect(self) -> sync_pass.Synchronizer:
        if self._synchroniser is None:
            self._synchroniser = sync_pass.Synchronizer(
                resource_providers.PlacementClient(
                    rest.from_conf(self._options)
                )
            )
        return self._synchroniser

    def _tell(self, result: sync_pass.PassResult) -> None:
        """Log problems once, when they appear and when they change."""
        found = frozenset(result.problems)
        for problem in sorted(
            found - self._problems, key=lambda p: (p.where, p.reason)
        ):
            LOG.warning("%s: %s", problem.where, problem.reason)
        self._problems = found
