# SPDX-License-Identifier: Apache-2.0
"""What a pass asks of Placement: requests and seconds.

    python -m tests.benchmark.placement_calls [--hosts 1000 --mariadb]

Placement is the real one, in a process of its own, over real HTTP; hosts
are directory trees, read by the library's own drivers. Requests are counted
by Placement's server, not by the library. "Names" are resource classes and
traits that the cloud sees for the first time.
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
from placement_sync.client import resource_providers, rest
from placement_sync.sync import sync_pass
from tests.benchmark import hosts
from tests.functional.sync.support import servers
from tests.hosts import build

RULES = policy.Policy()
COLUMNS = ("what", "reads", "writes", "names", "providers", "new", "seconds")
WIDTHS = (36, 7, 8, 7, 11, 6, 10)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """What one pass, or several, asked of Placement.

    ``names`` are those of the writes that make classes and traits known,
    ``new`` how many providers were created.
    """

    reads: int
    names: int
    providers: int
    new: int
    seconds: float

    @property
    def row(self) -> tuple[str, ...]:
        """Return the numbers as they are printed."""
        return (
            str(self.reads),
            str(self.names + self.providers),
            str(self.names),
            str(self.providers),
            str(self.new),
            f"{self.seconds:.3f}",
        )


class Node:
    """A host in a directory, and the pass that reports it."""

    def __init__(
        self, server: servers.Server, name: str, where: pathlib.Path
    ) -> None:
        self.server = server
        self.root = providers.ProviderRoot(
            name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        )
        self._survey = change_detection.ChangeDetector(
            fs.DiskSource(where), plugin.load(), RULES
        )
        self.state = model.HostState()
        self.claims: tuple[model.Claim, ...] = ()
        self._one = sync_pass.Synchronizer(
            resource_providers.PlacementClient(rest.from_endpoint(server.url))
        )
        self._one.run(self.tree(), self.state, create_root=True)

    def look(self) -> None:
        """Read what may have changed on the host."""
        self.state = self._survey.read_changed() or self.state

    def look_anew(self) -> None:
        """Read the whole host."""
        self.state = self._survey.read()

    def tree(self) -> providers.ProviderTree:
        """Return the tree that the host should have."""
        return tree_builder.build_tree(
            self.root, self.state, RULES, self.claims
        )

    def run(self) -> Count:
        """Make a pass, and count."""
        self.server.clear()
        began = time.perf_counter()
        result = self._one.run(self.tree(), self.state)
        seconds = time.perf_counter() - began
        assert result.is_ok, result.problems
        return counted(self.server.requests(), seconds)


def counted(asked: list[servers.Request], seconds: float) -> Count:
    """Return the numbers of some requests."""
    written = [r for r in asked if r.is_write]
    named = [
        r
        for r in written
        if r.path.startswith(("/traits/", "/resource_classes/"))
    ]
    return Count(
        reads=len(asked) - len(written),
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
    """Have a server claim a slot: what Nova, we and the kernel then do."""
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
    """Book a claim, as Nova's scheduler does."""
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

Tell = Callable[[str, Count], None]


class Bench:
    """The cases, in the order of the table."""

    def __init__(
        self, server: servers.Server, where: pathlib.Path, tell: Tell
    ) -> None:
        self._server = server
        self._where = where
        self._tell = tell

    def node(self, name: str, description: Mapping[str, Any]) -> Node:
        """Return a host that is registered and read."""
        where = self._where / name
        build.build(description, where)
        node = Node(self._server, name, where)
        node.look_anew()
        return node

    def cards(self) -> None:
        """Measure cards that are new, and hosts that hardly change."""
        self._tell("first card of a cloud", self.node("a", gpus(1)).run())
        second = self.node("b", gpus(1))
        self._tell("second identical card", second.run())
        self._tell("nothing changed", second.run())
        card = second.state.devices[0]
        known = dataclasses.replace(
            card, traits=card.traits ^ {"CUSTOM_ACCELERATOR_NUMA_0"}
        )
        second.state = dataclasses.replace(second.state, devices=(known,))
        self._tell("one changed trait", second.run())
        second.look_anew()
        second.run()
        claim(second, self._where / "b")
        second.look_anew()
        self._tell("one claim on a vGPU card", second.run())
        self._tell("QAT card, 48 VFs, first", self.node("c", crypto(1)).run())
        self._tell("QAT card, 48 VFs, second", self.node("d", crypto(1)).run())

    def eight(self) -> None:
        """Measure a host of eight cards, the reading of it apart."""
        node = self.node("eight", gpus(8, 32))
        began = time.perf_counter()
        node.look_anew()
        read = time.perf_counter() - began
        self._tell("8 cards of 32 VFs, first", node.run())
        began = time.perf_counter()
        node.look()
        changed = time.perf_counter() - began
        self._tell("8 cards of 32 VFs, unchanged", node.run())
        print(
            f"reading that host takes {read:.3f} s, looking whether"
            f" it has changed {changed:.3f} s"
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
        for what in ("first", "unchanged"):
            found = [node.run() for node in nodes]
            total = Count(
                **{
                    field.name: sum(getattr(c, field.name) for c in found)
                    for field in dataclasses.fields(Count)
                }
            )
            self._tell(f"{count} hosts of one card, {what}", total)
            print(
                f"  per host: {total.reads / count:.2f} reads,"
                f" {(total.names + total.providers) / count:.2f} writes,"
                f" {total.seconds / count:.4f} s"
            )


def tell(what: str, count: Count | None = None) -> None:
    """Print a row of the table."""
    cells = (what, *(count.row if count else COLUMNS[1:]))
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
            bench = Bench(server, where, tell)
            tell(COLUMNS[0])
            bench.cards()
            bench.eight()
            bench.many(arguments.hosts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
