# SPDX-License-Identifier: Apache-2.0
"""Time under Nova's lock of all claims: Nova's vGPUs beside nova-accel.

    python -m tests.benchmark.nova_lock [--gpus 8 --vfs 32 --types 24]

Nova's resource tracker updates Placement under one lock, in each periodic
task and in each claim (resource_tracker.py, _update_to_placement). The
benchmark makes the same calls of Nova's report client and of three drivers,
on one host and with a real Placement over HTTP: Nova's driver without vGPUs,
Nova's driver with one vGPU type, and nova-accel with all types, whose claims
have a vGPU on each VF. Nothing changes between two runs; the output has the
fastest of them.
"""

import argparse
import contextlib
import functools
import logging
import pathlib
import sys
import tempfile
import types
import uuid
from collections.abc import Iterator
from typing import Any

import nova.conf
from keystoneauth1 import loading
from nova import config as nova_config
from nova import context as nova_context
from nova import exception, objects
from nova.scheduler.client import report
from nova.virt.libvirt import driver as libvirt_driver

from nova_accel import model
from nova_accel.config import conf as accel_conf
from nova_accel.host.execute import privileged
from nova_accel.model import names, providers
from tests.benchmark import hosts, inventory_pass, namespace, placement_calls
from tests.functional.sync.support import servers
from virt_hooks import nova_driver
from virt_hooks.report import server_allocations

MODULE = "tests.benchmark.nova_lock"
CONTEXT = nova_context.get_admin_context()
COLUMNS = ("no-vgpus", "nova-vgpus", "nova-accel")


class Side:
    """One driver under Nova's lock, with its own node in Placement."""

    def __init__(
        self, name: str, client: Any, driver: Any, server: servers.Server
    ) -> None:
        self._root = build_root(name)
        self._client = client
        self._driver = driver
        self._server = server
        self._tree: Any = None

    def copy_tree(self) -> None:
        """Copy the report client's tree for the driver."""
        self._tree = self._client.get_provider_subtree_and_ensure_root(
            CONTEXT, self._root.uuid, name=self._root.name
        )

    def read_allocations(self) -> None:
        """Read the allocations of all providers."""
        self._client.get_allocations_for_provider_tree(
            CONTEXT, self._root.name
        )

    def update(self) -> None:
        """Let the driver update the tree."""
        self._driver.update_provider_tree(self._tree, self._root.name)

    def send(self) -> None:
        """Compare the tree with the report client's, and send changes."""
        self._client.update_from_provider_tree(CONTEXT, self._tree)

    def register(self) -> None:
        """Send all providers to Placement; the first update may conflict."""
        for _ in range(2):
            self.copy_tree()
            with contextlib.suppress(exception.ResourceProviderUpdateConflict):
                self.update()
                self.send()

    def measure(self) -> Iterator[tuple[str, float]]:
        """Yield the rows: label, and a number or seconds."""
        self.copy_tree()
        yield "resource providers", len(self._tree.get_provider_uuids()) - 1
        self._server.clear()
        total = 0.0
        for label, call, before in (
            ("copy the tree", self.copy_tree, None),
            ("read all allocations", self.read_allocations, None),
            ("update_provider_tree", self.update, self.copy_tree),
            ("compare the tree", self.send, self._copy_and_update),
        ):
            seconds = inventory_pass.fastest(call, before)
            total += seconds
            yield label, seconds
        yield "all of them", total
        requests = len(self._server.requests())
        yield "requests to Placement", requests // inventory_pass.RUNS

    def _copy_and_update(self) -> None:
        self.copy_tree()
        self.update()


def build_root(name: str) -> providers.ProviderRoot:
    return providers.ProviderRoot(
        name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    )


def make_stock_driver(mdev_types: list[str]) -> Any:
    """Return Nova's own driver."""
    nova.conf.CONF.set_override("enabled_mdev_types", mdev_types, "devices")
    driver = libvirt_driver.LibvirtDriver(None)
    driver._host.initialize()
    return driver


def make_accel_driver(client: Any) -> Any:
    """Return nova-accel's driver, with a claim on each VF's vGPU."""
    nova.conf.CONF.set_override("enabled_mdev_types", [], "devices")
    driver = nova_driver.AccelLibvirtDriver(
        types.SimpleNamespace(reportclient=client)
    )
    driver._host.initialize()
    accel, root = driver._accel, build_root(COLUMNS[2])
    accel.adopt(root)
    accel.host.refresh()
    for device in accel.host.state.devices:
        for identifier in device.slots:
            slot = model.Slot(
                provider=names.provider_uuid(root.uuid, device.address),
                resource_class=device.resource_class,
                identifier=identifier,
            )
            assert accel.restore(str(uuid.uuid4()), [slot])
    accel.clean_up()
    server_allocations.read_on_use(client)
    return driver


def make_client(server: servers.Server) -> Any:
    """Return Nova's client of a Placement."""
    conf = nova.conf.CONF
    options = loading.get_auth_plugin_conf_options("admin_token")
    conf.register_opts(options, group="placement")
    for name, value in (
        ("auth_type", "admin_token"),
        ("endpoint", server.url),
        ("endpoint_override", server.url),
        ("token", "admin"),
    ):
        conf.set_override(name, value, "placement")
    return report.SchedulerReportClient()


def measure(where: pathlib.Path) -> None:
    """Print the table for the host mounted at /sys."""
    nova_config.parse_args(["benchmark"], default_config_files=[])
    conf = nova.conf.CONF
    conf.set_override("connection_uri", "qemu:///system", "libvirt")
    conf.set_override("instances_path", str(where))
    accel_conf.read_settings(conf)
    conf.set_override("state_dir", str(where / "state"), "nova_accel")
    # There is no database for the drivers' service record.
    logging.disable()
    objects.register_all()
    privileged.run_here()
    with placement_calls.running(where, is_mariadb=False) as server:
        client = make_client(server)
        columns = []
        # Each driver reads nova.conf when it is made.
        for name, make in (
            (COLUMNS[0], functools.partial(make_stock_driver, [])),
            (COLUMNS[1], functools.partial(make_stock_driver, ["nvidia-555"])),
            (COLUMNS[2], functools.partial(make_accel_driver, client)),
        ):
            side = Side(name, client, make(), server)
            side.register()
            columns.append(dict(side.measure()))
        print_table(columns)


def print_table(columns: list[dict[str, float]]) -> None:
    """Print the rows of all sides; seconds as milliseconds."""
    print(f"{'':36}" + "".join(f"{name:>16}" for name in COLUMNS))
    for label in columns[0]:
        cells = "".join(
            f"{column[label]:16d}"
            if isinstance(column[label], int)
            else f"{1000 * column[label]:13.2f} ms"
            for column in columns
        )
        print(f"{label:36}{cells}")


def main() -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--vfs", type=int, default=32)
    parser.add_argument("--types", type=int, default=24)
    parser.add_argument("--inside", help="internal")
    arguments = parser.parse_args()
    if arguments.inside:
        measure(pathlib.Path(arguments.inside))
        return 0
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as tree,
        tempfile.TemporaryDirectory() as where,
    ):
        described = hosts.describe(
            arguments.gpus, arguments.vfs, arguments.types
        )
        root = build_root(COLUMNS[2])
        hosts.make(hosts.fill(described, root.uuid), pathlib.Path(tree))
        return namespace.enter(
            pathlib.Path(tree),
            [
                *(sys.executable, "-W", "ignore", "-m", MODULE),
                *("--inside", where),
            ],
        )


if __name__ == "__main__":
    inventory_pass.run(main)
