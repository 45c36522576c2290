# SPDX-License-Identifier: Apache-2.0
"""A cloud with two hosts, shared by many lives of the campaign."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import oslo_messaging
from nova import objects
from nova.scheduler.client import report
from nova.scheduler.filters import compute_filter
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_utils.fixture import uuidsentinel as uuids
from sqlalchemy import pool

from nova_accel.host import bounded_calls
from nova_accel.model import names, rpc_names
from tests.campaign import faults, kinds, messages, scrubbed
from tests.functional.nova.attach import attaching
from tests.functional.nova.operations import moving
from tests.functional.nova.support import harness, libvirtd, technologies
from tests.lab.fakehost import fpga

HOSTS = ("host1", "host2")
_SERVES = ("compute", "compute-alt", rpc_names.TOPIC)

TECHNOLOGIES = {each.name: each for each in kinds.ALL}


class World(moving.LiveBase, attaching.AttachingTestBase):
    """Nova with two computes; messages run in the thread that sends them."""

    CAST_AS_CALL = False
    technology = technologies.MDEV
    #: What is done once all is started.
    body: Callable[["World"], None] = lambda _: None

    def setUp(self) -> None:
        self.CARDS = self.technology.cards
        self._local = threading.local()
        self.scrubs = scrubbed.Ledger()
        self.down: set[str] = set()
        self._hurry()
        super().setUp()
        self.useFixture(nova_fixtures.SpawnIsSynchronousFixture())
        self.flags(
            allow_resize_to_same_host=True,
            running_deleted_instance_action="reap",
            running_deleted_instance_timeout=0,
        )
        self.flags(max_attempts=1, group="scheduler")
        # Faults leave servers of former lives in Nova's count of its quota.
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")
        self.power_off_to_move()
        self.injector = self.useFixture(
            faults.Injector(
                lambda: self.served, self._is_kernel, self._is_note
            )
        )
        self.scrubs.is_kept = self.technology.name in kinds.KEPT
        self.scrubs.is_vgpu = self.technology.name in kinds.TYPED
        self._watch_guests()
        #: The only host that the scheduler may choose; "" for any.
        self.only = ""
        self._choose_hosts()
        self.injector.wrote = self._note_write
        #: Servers whose allocations Nova itself has deleted.
        self.given_up: set[str] = set()
        self._watch_allocations()
        self.roots = dict(self.compute_rp_uuids)
        # Later a card may be set aside, and show no traits.
        self.specs = {
            "small": self.technology.small(self),
            "other": self.technology.other(self),
            "none": {},
        }
        self.flavors = {
            name: self.flavor(specs) for name, specs in self.specs.items()
        }
        self.pristine = {host: self.providers_of(host) for host in HOSTS}

    def runTest(self) -> None:
        """Live the lives; Nova's harness wants a test's method."""
        type(self).body(self)

    def _hurry(self) -> None:
        """Leave out what takes time in a process with one busy thread.

        A life takes seconds: what waits for minutes is done at once.
        """
        for name, value in (
            ("oslo_db.sqlalchemy.engines.pool.NullPool", pool.QueuePool),
            ("oslo_db.sqlalchemy.engines._thread_yield", lambda *_: None),
            (
                "nova.virt.libvirt.LibvirtDriver.get_host_uptime",
                lambda _: "0:00",
            ),
            ("virt_hooks.report.claim_checks.CHECK_S", 0.0),
            ("nova_accel.host.bounded_calls.write", _write_soon),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, value))

    def settings(self, name: str) -> dict[str, Any]:
        settings = dict(self.technology.settings)
        if self.technology is kinds.BLANKED:
            blank = Path(self.useFixture(fixtures.TempDir()).join("blank.gbs"))
            blank.write_bytes(fpga.gbs(kinds.BLANK, kinds.BLANK_INTERFACE))
            settings["device_spec"] = [json.dumps({"blank": str(blank)})]
            self.scrubs.blank = kinds.BLANK
        return settings

    def _setup_services(self) -> None:
        self.bus = messages.Bus(self._around, self._answered)
        for name, function in (
            ("get_rpc_server", self.bus.get_server),
            ("transport.RPCTransport._send", self._send),
        ):
            self.useFixture(
                fixtures.MonkeyPatch(f"oslo_messaging.{name}", function)
            )
        super()._setup_services()

    def _send(self, *arguments: Any, **words: Any) -> Any:
        return self.bus.send(*arguments, **words)

    def _around(self, host: str, topic: str, work: Callable[[], Any]) -> Any:
        if topic not in _SERVES:
            with self._serving(""):
                return work()
        try:
            if host in self.injector.killed:
                raise faults.KilledError
            with self.at(host):
                return work()
        except faults.KilledError:
            raise oslo_messaging.MessagingTimeout(
                f"nova-compute of {host} was killed"
            ) from None

    def _answered(self, method: str, work: Callable[[], Any]) -> Any:
        return self.injector.answered(method, work)

    # -- who is at work ----------------------------------------------------

    @property
    def served(self) -> str:
        """Return the host whose nova-compute this thread is."""
        host: str = getattr(self._local, "host", "")
        return host

    @contextlib.contextmanager
    def _serving(self, host: str) -> Iterator[None]:
        before, self._local.host = self.served, host
        try:
            yield
        finally:
            self._local.host = before

    @contextlib.contextmanager
    def at(self, host: str) -> Iterator[None]:
        """Be a host's nova-compute for a while."""
        before = harness.CONF.host
        self.be_on(host)
        try:
            with self._serving(host):
                yield
        finally:
            if before in self._directories:
                self.be_on(before)

    def be_on(self, name: str) -> None:
        # As flags() does, which would keep each override until the end.
        harness.CONF.set_override("host", name)
        for option, value in self._directories[name].items():
            harness.CONF.set_override(option, value, group="nova_accel")

    # -- hosts -------------------------------------------------------------

    def providers_of(self, host: str) -> dict[str, dict[str, Any]]:
        """Return a host's providers, but for what policy lets regions keep.

        A region without a blank bitstream keeps its last function.
        """
        providers = self.stable_providers(host)
        for record in providers.values():
            record["traits"] = {
                trait
                for trait in record["traits"]
                if not trait.startswith(names.FUNCTION_PREFIX)
            }
        return providers

    def periodics(self, host: str) -> None:
        """Run a pass, and Nova's own clean-ups, on one host."""
        manager = self.computes[host].manager
        with (
            self.at(host),
            mock.patch(
                "nova.virt.node.get_local_node_uuid",
                return_value=str(getattr(uuids, f"node_{host}")),
            ),
        ):
            for instance in objects.InstanceList.get_by_host(
                self.context, host, expected_attrs=[]
            ):
                with logged("power states are not compared"):
                    # _sync_power_states() wants threads of its own.
                    manager._query_driver_power_state_and_sync(
                        self.context, instance
                    )
            for task in (
                manager._cleanup_running_deleted_instances,
                manager._run_pending_deletes,
                manager._cleanup_incomplete_migrations,
                manager.update_available_resource,
            ):
                with logged("periodic task failed"):
                    task(self.context)

    def take_down(self, host: str) -> None:
        """End a nova-compute; its guests go on."""
        if host not in self.down:
            self.down.add(host)
            with (
                self.at(host),
                contextlib.suppress(faults.KilledError),
                logged("the service ends badly"),
            ):
                self.computes[host].stop()
        self.injector.killed.discard(host)

    def revive(self, host: str) -> None:
        """Start a nova-compute; repeat up to three times until it is up."""
        self.take_down(host)
        connection = self.connection(host)
        for _ in range(3):
            self.computes.pop(host, None)
            self.compute_rp_uuids.pop(host, None)
            try:
                with self.at(host):
                    self.start_compute(hostname=host, connection=connection)
            except (Exception, SystemExit, faults.KilledError):
                LOG.exception("%s does not start", host)
                self.injector.is_armed = False
                self.injector.killed.discard(host)
                continue
            self.down.discard(host)
            return
        raise AssertionError(f"nova-compute of {host} does not start")

    def profile(self) -> str:
        """Return the profile of the small flavor, to attach it."""
        if self.technology in technologies.ALL:
            return super().profile()
        return next(
            key.partition(":")[2]
            for key in self.specs["small"]
            if key.startswith("trait")
        )

    def attach_arguments(self, profile: str) -> dict[str, str]:
        arguments: dict[str, str] = super().attach_arguments(profile)
        if self.technology is kinds.ALVEO:
            image = self.specs["other"]["accelerator:fpga_bitstream"]
            arguments["bitstream"] = image
        return arguments

    def connection(self, host: str) -> Any:
        """Return a host's libvirt."""
        return self.libvirts[host]

    def start_host(
        self, *cards: Any, name: str = "host1", **words: Any
    ) -> Any:
        compute = super().start_host(*cards, name=name, **words)
        if not hasattr(self, "libvirts"):
            self.libvirts: dict[str, Any] = {}
        self.libvirts[name] = compute.driver._host.get_connection()
        if self.technology is kinds.ALVEO:
            self.hosts[name].write_fpga_tool("xrt-smi")
        return compute

    def lose_power(self, host: str) -> None:
        """End all guests and forget all devices of a host."""
        for domain in self.connection(host)._vms.values():
            domain._state = fakelibvirt.VIR_DOMAIN_SHUTOFF
            domain.close_groups()
            domain.live = []
        self.hosts[host].reboot()
        self.scrubs.clean_all(str(self.hosts[host].root))

    # -- what is watched ---------------------------------------------------

    def _is_kernel(self, path: str) -> bool:
        return any(
            path.startswith(f"{host.root}/") for host in self.hosts.values()
        )

    def _is_note(self, path: str) -> bool:
        return any(
            path.startswith(f"{place['state_dir']}/")
            for place in self._directories.values()
        )

    def _watch_guests(self) -> None:
        stock, scrubs = libvirtd.Domain._take, self.scrubs

        def take(domain: Any, element: Any) -> None:
            self.note_programmings()
            stock(domain, element)
            source = libvirtd._source(element)
            name = (
                source.get("uuid")
                or libvirtd._device(domain._connection.root, element)._address
            )
            root = str(domain._connection.root)
            scrubs.take(root, name, domain.UUIDString())

        self.stub_out(f"{libvirtd.__name__}.Domain._take", take)

    def _watch_allocations(self) -> None:
        for name in (
            "delete_allocation_for_instance",
            "remove_provider_tree_from_instance_allocation",
        ):
            stock = getattr(report.SchedulerReportClient, name)

            def delete(
                client: Any,
                context: Any,
                uuid: str,
                *rest: Any,
                stock: Callable[..., Any] = stock,
                **words: Any,
            ) -> Any:
                self.given_up.add(uuid)
                return stock(client, context, uuid, *rest, **words)

            self.stub_out(
                f"nova.scheduler.client.report.SchedulerReportClient.{name}",
                delete,
            )

    def _choose_hosts(self) -> None:
        stock = compute_filter.ComputeFilter.host_passes

        def passes(host_filter: Any, state: Any, spec: Any) -> bool:
            is_right = self.only in ("", state.host)
            return is_right and bool(stock(host_filter, state, spec))

        self.stub_out(
            "nova.scheduler.filters.compute_filter.ComputeFilter.host_passes",
            passes,
        )

    def note_programmings(self) -> None:
        """Note the images loaded into the regions of each host."""
        if self.technology.name in kinds.FPGAS:
            for host in self.hosts.values():
                loaded = host.programmings()
                self.scrubs.note_programmings(str(host.root), loaded)

    def _note_write(self, path: str, text: str) -> None:
        for host in self.hosts.values():
            if path.startswith(f"{host.root}/"):
                self.scrubs.write(str(host.root), Path(path), text)


LOG = logging.getLogger(__name__)
#: Seconds that a write may take; a minute and more outside the campaign.
_WRITE_S = 3.0
_write = bounded_calls.write


def _write_soon(path: str, limit_s: float, *rest: Any) -> Any:
    return _write(path, min(limit_s, _WRITE_S), *rest)


@contextlib.contextmanager
def logged(what: str) -> Iterator[None]:
    """Log what fails, as Nova's periodic tasks do."""
    try:
        yield
    except Exception:
        LOG.exception(what)
