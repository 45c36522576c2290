# SPDX-License-Identifier: Apache-2.0
"""Requests to Placement of one pass, and its seconds.

    python -m tests.benchmark.placement_calls [--hosts 1000 --mariadb]

A real Placement runs in a process of its own and is called over HTTP; hosts
are directory trees, read by the library's own drivers. Placement's server
counts the requests, not the library. "Names" are new resource classes and
traits.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import change_detection, plugin
from nova_accel.host.sysfs import fs
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from placement_sync.client import cloud_client, resource_providers
from placement_sync.sync import sync_pass
from tests.benchmark import hosts
from tests.functional.sync.support import servers
from tests.hosts import build

RULES = policy.DeviceRules()
COLUMNS = ("case", "reads", "writes", "names", "providers", "new", "seconds")
WIDTHS = (36, 7, 8, 7, 11, 6, 10)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """Requests to Placement of one pass, or of several.

    ``names`` is the number of writes that create classes and traits,
    ``new`` the number of created providers.
    """

    reads: int
    names: int
    providers: int
    new: int
    seconds: float

    @property
    def row(self) -> tuple[str, ...]:
        """Return the numbers as columns of the table."""
        return (
            str(self.reads),
            str(self.names + self.providers),
            str(self.names),
            str(self.providers),
            str(self.new),
            f"{self.seconds:.3f}",
        )


class Node:
    """A host in a directory, and the pass that publishes it."""

    def __init__(
        self, server: servers.Server, name: str, where: pathlib.Path
    ) -> None:
        self.server = server
        self.root = providers.ProviderRoot(
            name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        )
        self._detector = change_detection.ChangeDetector(
            fs.DiskSource(where), plugin.load(), RULES
        )
        self.state = model.HostState()
        self.claims: tuple[model.Claim, ...] = ()
        self.restart()
        self._synchronizer.run(self.tree(), self.state, create_root=True)

    def restart(self) -> None:
        """Forget what was read from Placement, as a new service does."""
        self._synchronizer = sync_pass.Synchronizer(
            resource_providers.PlacementClient(
                cloud_client.from_endpoint(self.server.url)
            )
        )

    def read(self) -> None:
        """Read the host if it has changed."""
        self.state = self._detector.read_changed() or self.state

    def read_all(self) -> None:
        """Read the whole host."""
        self.state = self._detector.read()

    def tree(self) -> providers.ProviderTree:
        """Return the tree that the host should have."""
        return tree_builder.build_tree(
            self.root, self.state, RULES, self.claims
        )

    def run(self) -> Count:
        """Run a pass and return its requests."""
        self.server.clear()
        began = time.perf_counter()
        result = self._synchronizer.run(self.tree(), self.state)
        seconds = time.perf_counter() - began
        assert result.is_ok, result.problems
        return counted(self.server.requests(), seconds)


def counted(sent: list[servers.Request], seconds: float) -> Count:
    """Return the numbers of these requests."""
    written = [r for r in sent if r.is_write]
    named = [
        r
        for r in written
        if r.path.startswith(("/traits/", "/resource_classes/"))
    ]
    return Count(
        reads=len(sent) - len(written),
        names=len(named),
        providers=len(written) - len(named),
        new=sum(r.method == "POST" for r in written),
        seconds=seconds,
    )


# -- hosts ----------------------------------------------------------------


def crypto(cards: int) -> dict[str, Any]:
    """Return a host with cards of three QAT functions of 16 VFs each.

    Such a card (Intel QAT 8970, three C62x endpoints) has 48 VFs.
    """
    return {
        "functions": [
            {
                "address": f"0000:{0x3D + 0x10 * card + number:02x}:00.0",
                "id": "8086:37c8",
                "class": "0b4000",
                "driver": "c6xx",
                "numa": 0,
                "group": 100 * (3 * card + number),
                "vfs": {
                    "total": 16,
                    "count": 16,
                    "offset": 1,
                    "id": "8086:37c9",
                    "first_group": 100 * (3 * card + number) + 1,
                    "driver": "vfio-pci",
                },
            }
            for card in range(cards)
            for number in range(3)
        ]
    }


def gpus(count: int, vfs: int = 16) -> dict[str, Any]:
    """Return a host with NVIDIA A40s of 24 types."""
    return hosts.describe(count, vfs, 24)


def claim(node: Node, where: pathlib.Path) -> None:
    """Claim a slot as Nova, the library and the kernel do."""
    device = node.state.devices[0]
    profile = next(p for p in device.profiles if p.available)
    provider = names.provider_uuid(node.root.uuid, device.address)
    slot = device.slots[0]
    claimed = model.Claim(
        consumer=str(uuid.uuid4()),
        provider=provider,
        device=device.address,
        profile=profile.name,
        slot=slot,
        parent=slot,
        handle=names.mdev_uuid(provider, slot),
        technology=device.technology,
    )
    allocate(node.server, claimed, profile.charges)
    types = where / f"sys/bus/pci/devices/{slot}/mdev_supported_types"
    made = (types.parent / claimed.handle).resolve()
    made.mkdir()
    (made / "mdev_type").symlink_to(types.resolve() / profile.handles[slot])
    index = where / "sys/bus/mdev/devices"
    index.mkdir(parents=True, exist_ok=True)
    (index / claimed.handle).symlink_to(made)
    same = {
        handle
        for other in device.profiles
        if other.size == profile.size
        for handle in other.handles.values()
    }
    for vf in device.slots:
        place = where / f"sys/bus/pci/devices/{vf}/mdev_supported_types"
        for kind in place.iterdir():
            if vf == slot or kind.name not in same:
                (kind / "available_instances").write_text("0\n")
    node.claims = (claimed,)


def allocate(
    server: servers.Server, claimed: model.Claim, charges: Mapping[str, int]
) -> None:
    """Allocate a claim, as Nova's scheduler does."""
    server.call(
        "PUT",
        f"/allocations/{claimed.consumer}",
        {
            "allocations": {claimed.provider: {"resources": dict(charges)}},
            "consumer_generation": None,
            "project_id": "project",
            "user_id": "user",
            "consumer_type": "INSTANCE",
        },
    )


# -- the cases ------------------------------------------------------------

PrintRow = Callable[[str, Count], None]


class Measurement:
    """Measures the cases, in the order of the table."""

    def __init__(
        self, server: servers.Server, where: pathlib.Path, print_row: PrintRow
    ) -> None:
        self._server = server
        self._where = where
        self._print_row = print_row

    def node(self, name: str, description: Mapping[str, Any]) -> Node:
        """Return a host with a root provider and read devices."""
        where = self._where / name
        build.build(description, where)
        node = Node(self._server, name, where)
        node.read_all()
        return node

    def cards(self) -> None:
        """Measure new cards and small changes."""
        self._print_row("first card of a cloud", self.node("a", gpus(1)).run())
        second = self.node("b", gpus(1))
        self._print_row("second identical card", second.run())
        self._print_row("nothing changed", second.run())
        card = second.state.devices[0]
        changed = dataclasses.replace(
            card, traits=card.traits ^ {"CUSTOM_ACCELERATOR_NUMA_0"}
        )
        second.state = dataclasses.replace(second.state, devices=(changed,))
        self._print_row("one changed trait", second.run())
        second.read_all()
        second.run()
        claim(second, self._where / "b")
        second.read_all()
        self._print_row("one claim on a vGPU card", second.run())
        self._print_row(
            "QAT card, 48 VFs, first", self.node("c", crypto(1)).run()
        )
        self._print_row(
            "QAT card, 48 VFs, second", self.node("d", crypto(1)).run()
        )

    def eight(self) -> None:
        """Measure a host of eight cards; its reading separately."""
        node = self.node("eight", gpus(8, 32))
        began = time.perf_counter()
        node.read_all()
        read = time.perf_counter() - began
        self._print_row("8 cards of 32 VFs, first", node.run())
        began = time.perf_counter()
        node.read()
        changed = time.perf_counter() - began
        self._print_row("8 cards of 32 VFs, unchanged", node.run())
        print(
            f"reading this host takes {read:.3f} s, the check for"
            f" changes {changed:.3f} s"
        )

    def many(self, count: int) -> None:
        """Measure many hosts of one card each, one after another."""
        described = self.node("model", gpus(1, 4))
        described.run()
        nodes = []
        for number in range(count):
            node = Node(self._server, f"host-{number}", self._where / "model")
            node.state = described.state
            nodes.append(node)
        for label in ("first", "unchanged"):
            counts = [node.run() for node in nodes]
            total = Count(
                **{
                    field.name: sum(getattr(c, field.name) for c in counts)
                    for field in dataclasses.fields(Count)
                }
            )
            self._print_row(f"{count} hosts of one card, {label}", total)
            print(
                f"  per host: {total.reads / count:.2f} reads,"
                f" {(total.names + total.providers) / count:.2f} writes,"
                f" {total.seconds / count:.4f} s"
            )


def print_row(label: str, count: Count | None = None) -> None:
    """Print a row of the table."""
    cells = (label, *(count.row if count else COLUMNS[1:]))
    line = "".join(
        cell.ljust(width) if n == 0 else cell.rjust(width)
        for n, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    )
    print(line, flush=True)


@contextlib.contextmanager
def running(where: pathlib.Path, is_mariadb: bool) -> Iterator[servers.Server]:
    """Run a Placement."""
    with contextlib.ExitStack() as stack:
        database = f"sqlite:///{where}/placement.sqlite"
        if is_mariadb:
            database = stack.enter_context(servers.mariadb(where))
        yield stack.enter_context(servers.start(database, where / "words"))


def main() -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--mariadb", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        where = pathlib.Path(name)
        with running(where, arguments.mariadb) as server:
            measurement = Measurement(server, where, print_row)
            print_row(COLUMNS[0])
            measurement.cards()
            measurement.eight()
            measurement.many(arguments.hosts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
