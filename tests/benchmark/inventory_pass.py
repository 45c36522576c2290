# SPDX-License-Identifier: Apache-2.0
"""One inventory pass: Nova's own vGPU support beside ours.

    python -m tests.benchmark.inventory_pass [--gpus 8 --vfs 32 --types 24]

Both see the same host, a directory tree that stands for /sys: Nova through
a real libvirtd, whose node devices read the types of a parent anew whenever
they are asked for, we ourselves. Nova is configured with one of the types,
as it must be; we offer all of them.

Printed are the fastest of several runs of each. "Nothing changed" is what
a periodic pass costs on a quiet host, "one card changed" what a claim on
one card does. Nova does all of its pass under the lock of all its claims;
of ours only the last row runs there.
"""

import argparse
import logging
import os
import pathlib
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

import libvirt
import nova.conf
from nova import config as nova_config
from nova.compute import provider_tree
from nova.virt.libvirt import driver as libvirt_driver

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import change_detection, plugin
from nova_accel.host.sysfs import fs
from nova_accel.inventory import tree_builder
from nova_accel.model import providers
from tests.benchmark import hosts, namespace
from virt_hooks.report import nova_provider_tree

ROOT = providers.ProviderRoot(name="node", uuid=str(uuid.UUID(int=1)))
RUNS = 5
MODULE = "tests.benchmark.inventory_pass"


class CountedDisk(fs.DiskSource):
    """Kernel files, and how often one was opened."""

    reads = 0

    def content(self, path: str) -> bytes:
        self.reads += 1
        return super().content(path)


class Ours:
    """This library's pass, in its two halves."""

    def __init__(self) -> None:
        self.disk = CountedDisk()
        self.rules = policy.Policy()
        self.drivers = plugin.load()
        self.nova_tree = new_tree()
        self.start()

    def start(self) -> None:
        """Forget everything, as a service that has just started."""
        self.survey = change_detection.ChangeDetector(
            self.disk, self.drivers, self.rules
        )
        self.state = model.HostState()

    def look(self) -> None:
        """Read what can have changed: outside of Nova's lock."""
        self.state = self.survey.read_changed() or self.state

    def look_at_one(self) -> None:
        """Read one card, as after a claim on it."""
        first = self.state.devices[0]
        found = self.survey.read_devices([first]).device(first.address)
        assert found is not None
        self.state = model.HostState(devices=(found, *self.state.devices[1:]))

    def lay(self) -> None:
        """Update Nova's tree: under its lock."""
        desired = tree_builder.build_tree(ROOT, self.state, self.rules)
        nova_provider_tree.update_tree(
            self.nova_tree,
            desired,
            nova_provider_tree.guard(
                self.nova_tree, desired, frozenset(), self.state
            ),
            lambda slot: slot,
        )


def new_tree() -> Any:
    made = provider_tree.ProviderTree()
    made.new_root(ROOT.name, ROOT.uuid)
    return made


class Novas:
    """Nova's own pass; all of it runs under Nova's lock."""

    def __init__(self, type_id: str) -> None:
        nova_config.parse_args(["benchmark"], default_config_files=[])
        conf = nova.conf.CONF
        conf.set_override("connection_uri", "qemu:///system", "libvirt")
        conf.set_override("enabled_mdev_types", [type_id], "devices")
        # It wants to tell a database, which isn't there, that it is enabled.
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
        """Forget the providers, as a service that has just started."""
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
    """Print both sides of the host that stands at /sys."""
    stock = Novas("nvidia-558")
    ours = Ours()
    stock_cold = fastest(stock.update, stock.start)
    stock.reads = 0
    stock.update()
    stock_reads = stock.reads
    stock_again = fastest(stock.update)

    def pass_whole() -> None:
        ours.look()
        ours.lay()

    def restart() -> None:
        ours.start()
        ours.nova_tree = new_tree()

    def pass_one() -> None:
        ours.look_at_one()
        ours.lay()

    cold = fastest(pass_whole, restart)
    again = fastest(pass_whole)
    one = fastest(pass_one)
    ours.disk.reads = 0
    ours.lay()
    lock_reads = ours.disk.reads
    under_lock = fastest(ours.lay)
    count = len(stock.nova_tree.get_provider_uuids()) - 1
    report(
        [
            ("resource providers", count, len(ours.state.devices), ""),
            ("devices read under the lock", stock_reads, lock_reads, ""),
            ("cold", stock_cold, cold, "s"),
            ("nothing changed", stock_again, again, "s"),
            ("one card changed", stock_again, one, "s"),
            ("time under Nova's lock", stock_again, under_lock, "s"),
        ]
    )


def report(rows: list[tuple[str, float, float, str]]) -> None:
    """Print a table: what, Nova's, ours, how many times less."""
    print(f"{'':28}{'Nova':>12}{'nova-accel':>12}{'ratio':>9}")
    for what, theirs, mine, unit in rows:
        ratio = f"{theirs / mine:8.1f}x" if mine else "      --"
        if unit:
            print(f"{what:28}{theirs:11.4f}s{mine:11.4f}s{ratio:>9}")
        else:
            print(f"{what:28}{theirs:12.0f}{mine:12.0f}{ratio:>9}")


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


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # Nova's driver has started threads that never end
