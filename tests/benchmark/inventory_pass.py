# SPDX-License-Identifier: Apache-2.0
"""One inventory pass: Nova's own vGPU support beside this library's.

    python -m tests.benchmark.inventory_pass [--gpus 8 --vfs 32 --types 24]

Both read the same host, a directory tree mounted as /sys: Nova through a real
libvirtd, whose node devices read the types of a parent on each request, this
library directly. Nova is configured with one of the types, as it must be;
the library offers all of them.

The output has the fastest of several runs. "Nothing changed" is a periodic
pass on a host without changes, "one card changed" a pass after the uevent of
a new or removed vGPU. Nova's whole pass runs under the lock of all its claims;
``nova_lock`` has the time that both sides need under it.
"""

import argparse
import copy
import logging
import os
import pathlib
import sys
import tempfile
import time
import traceback
import types
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

import libvirt
import nova.conf
from nova import config as nova_config
from nova import objects
from nova.compute import provider_tree
from nova.virt.libvirt import driver as libvirt_driver

from nova_accel.config import policy
from nova_accel.discovery import change_detection, plugin, snapshot
from nova_accel.host.execute import action_executor
from nova_accel.host.sysfs import fs, udev
from nova_accel.model import providers
from tests.benchmark import hosts, namespace
from virt_hooks.report import provider_writer, reporter, server_allocations
from virt_hooks.spawn import lifecycle

ROOT = providers.ProviderRoot(name="node", uuid=str(uuid.UUID(int=1)))
RUNS = 5
MODULE = "tests.benchmark.inventory_pass"


class CountedDisk(fs.DiskSource):
    """Kernel files; counts the opened ones."""

    reads = 0

    def content(self, path: str) -> bytes:
        self.reads += 1
        return super().content(path)


class Library:
    """This library's pass: read the host, then update Nova's tree."""

    def __init__(self) -> None:
        self.disk = CountedDisk()
        self.start()

    def start(self) -> None:
        """Drop all caches, as in a service that has just started."""
        rules, drivers = policy.DeviceRules(), plugin.load()
        self.uevents = udev.UeventLog()
        self.uevents.set_open(True)
        detector = change_detection.ChangeDetector(
            self.disk, drivers, rules, uevents=self.uevents
        )
        self.accel = lifecycle.Lifecycle(
            drivers,
            rules,
            action_executor.Executor("/"),
            snapshot.Snapshot(detector),
        )
        self.accel.adopt(ROOT)
        client = types.SimpleNamespace(reportclient=None)
        self.reporter = reporter.Reporter(
            self.accel,
            server_allocations.ServerAllocations(client),
            provider_writer.ProviderWriter(client),
        )
        self.nova_tree = new_tree()

    def read(self) -> None:
        """Read the host if it has changed, outside of Nova's lock."""
        self.accel.host.refresh_changed()
        self.accel.clean_up()

    def change_card(self) -> None:
        """Make a vGPU, or remove it again; the kernel sends a uevent."""
        vf = self.accel.host.state.devices[0].slots[0]
        hosts.toggle_mdev(pathlib.Path("/"), vf)
        self.uevents.add(vf)

    def update_tree(self) -> None:
        """Update Nova's tree, under Nova's lock."""
        self.reporter.update_tree(self.nova_tree, ())
        copy.deepcopy(self.nova_tree)
        self.reporter.use_tree(self.nova_tree)

    def run(self) -> None:
        """Run a whole pass."""
        self.read()
        self.update_tree()


def new_tree() -> Any:
    made = provider_tree.ProviderTree()
    made.new_root(ROOT.name, ROOT.uuid)
    return made


class NovaDriver:
    """Nova's own pass; all of it runs under Nova's lock."""

    def __init__(self, type_id: str) -> None:
        nova_config.parse_args(["benchmark"], default_config_files=[])
        conf = nova.conf.CONF
        conf.set_override("connection_uri", "qemu:///system", "libvirt")
        conf.set_override("enabled_mdev_types", [type_id], "devices")
        # There is no database for the driver's service record.
        logging.getLogger(libvirt_driver.__name__).setLevel(logging.CRITICAL)
        self.driver = libvirt_driver.LibvirtDriver(None)
        self.driver._host.initialize()
        self.nova_tree = new_tree()
        self.reads = 0
        read = libvirt.virNodeDevice.XMLDesc

        def counted(device: Any, flags: int = 0) -> str:
            self.reads += 1
            return str(read(device, flags))

        libvirt.virNodeDevice.XMLDesc = counted

    def start(self) -> None:
        """Drop the providers, as in a service that has just started."""
        self.nova_tree = new_tree()

    def update(self) -> None:
        """Update Nova's tree."""
        self.driver._update_provider_tree_for_vgpu(self.nova_tree, ROOT.name)


def fastest(
    run: Callable[[], None], before: Callable[[], None] | None = None
) -> float:
    """Return the seconds of the fastest of several runs."""
    took = []
    for _ in range(RUNS):
        if before is not None:
            before()
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took)


def measure() -> None:
    """Print both sides for the host mounted at /sys."""
    objects.register_all()
    stock = NovaDriver("nvidia-558")
    library = Library()
    stock_cold = fastest(stock.update, stock.start)
    stock.reads = 0
    stock.update()
    stock_reads = stock.reads
    stock_again = fastest(stock.update)

    cold = fastest(library.run, library.start)
    again = fastest(library.run)
    one_card = fastest(library.run, library.change_card)
    library.disk.reads = 0
    library.update_tree()
    lock_reads = library.disk.reads
    count = len(stock.nova_tree.get_provider_uuids()) - 1
    devices = len(library.accel.host.state.devices)
    report(
        [
            ("resource providers", count, devices, ""),
            ("devices read under the lock", stock_reads, lock_reads, ""),
            ("cold", stock_cold, cold, "s"),
            ("nothing changed", stock_again, again, "s"),
            ("one card changed", stock_again, one_card, "s"),
        ]
    )


def report(rows: list[tuple[str, float, float, str]]) -> None:
    """Print a table: label, Nova's value, the library's, their ratio."""
    print(f"{'':28}{'Nova':>12}{'nova-accel':>12}{'ratio':>9}")
    for label, nova_value, accel_value, unit in rows:
        ratio = (
            f"{nova_value / accel_value:8.1f}x" if accel_value else "      --"
        )
        if unit:
            print(
                f"{label:28}{nova_value:11.4f}s{accel_value:11.4f}s{ratio:>9}"
            )
        else:
            print(f"{label:28}{nova_value:12.0f}{accel_value:12.0f}{ratio:>9}")


def main() -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--vfs", type=int, default=32)
    parser.add_argument("--types", type=int, default=24)
    parser.add_argument("--inside", action="store_true", help="internal")
    arguments = parser.parse_args()
    if arguments.inside:
        measure()
        return 0
    # In memory, as the kernel's own files are.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as where:
        described = hosts.describe(
            arguments.gpus, arguments.vfs, arguments.types
        )
        tree_root = pathlib.Path(where)
        hosts.make(described, tree_root)
        return namespace.enter(
            tree_root,
            [sys.executable, "-W", "ignore", "-m", MODULE, "--inside"],
        )


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program and exit: Nova's driver has threads that never end."""
    status = 1
    try:
        status = main()
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    run(main)
