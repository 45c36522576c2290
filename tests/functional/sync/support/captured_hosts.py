# SPDX-License-Identifier: Apache-2.0
"""A cloud of captured hosts in a real Placement."""

import pathlib

import pytest

from nova_accel.host.sysfs import fs
from nova_accel.model import names
from placement_sync.cli import main as sync_cli
from tests.functional.sync.commands import programs
from tests.functional.sync.support import nova_standin, servers
from tests.hosts import look


class Cloud:
    """Captured hosts, written to Placement by passes.

    ``nova`` has the servers.
    """

    def __init__(
        self,
        placement: servers.Server,
        place: pathlib.Path,
        capsys: pytest.CaptureFixture[str],
        nova: nova_standin.Nova | None = None,
    ) -> None:
        self.placement = placement
        self.place = place
        self.capsys = capsys
        self.nova = nova

    def add(self, name: str, pci_ids: str = "", **capacities: int) -> str:
        """Add a host; return the uuid of its compute node.

        :param pci_ids: text of its list of PCI ids.
        """
        host = f"{name}.example.org"
        root = look.make(name, self.place / name)
        if pci_ids:
            file = pathlib.Path(f"{root}{fs.PCI_IDS[0]}")
            file.parent.mkdir(parents=True)
            file.write_text(pci_ids)
        status = sync_cli.main(
            [
                *("run", "--root", str(root)),
                *("--host", host, "--endpoint", self.placement.url),
                *("--once", "--create-root"),
            ]
        )
        assert status == 0
        self.capsys.readouterr()
        node = self.find(host)
        self.set_inventories(node, **capacities)
        return node

    def find(self, name: str) -> str:
        """Return the uuid of a provider."""
        path = f"/resource_providers?name={name}"
        (provider,) = self.placement.call("GET", path)["resource_providers"]
        return str(provider["uuid"])

    def set_inventories(self, uuid: str, **capacities: int) -> None:
        """Set a provider's inventories; negative totals are fully reserved."""
        path = f"/resource_providers/{uuid}"
        generation = self.placement.call("GET", path)["generation"]
        self.placement.call(
            "PUT",
            f"{path}/inventories",
            {
                "resource_provider_generation": generation,
                "inventories": {
                    name: {"total": abs(n), "reserved": -min(n, 0)}
                    for name, n in capacities.items()
                },
            },
        )

    def allocate(self, uuid: str, consumer: str = "", **amounts: int) -> None:
        """Allocate units of a provider to a new consumer."""
        self.placement.call(
            "PUT",
            f"/allocations/{consumer or uuid}",
            {
                "allocations": {uuid: {"resources": amounts}},
                "consumer_generation": None,
                "project_id": "project",
                "user_id": "user",
                "consumer_type": "INSTANCE",
            },
        )

    def drain(self, uuid: str, **totals: int) -> None:
        """Set the trait of a drained device, and reserve all its units."""
        self.mark(uuid, names.DRAINED_TRAIT)
        self.set_inventories(
            uuid, **{name: -total for name, total in totals.items()}
        )

    def mark(self, uuid: str, *traits: str) -> None:
        """Add traits to a provider."""
        path = f"/resource_providers/{uuid}/traits"
        body = self.placement.call("GET", path)
        for trait in traits:
            self.placement.call("PUT", f"/traits/{trait}")
            body["traits"].append(trait)
        self.placement.call("PUT", path, body)

    def replace_trait(self, uuid: str, old: str, new: str) -> None:
        """Remove a trait of a provider and add another one."""
        path = f"/resource_providers/{uuid}/traits"
        body = self.placement.call("GET", path)
        body["traits"].remove(old)
        self.placement.call("PUT", path, body)
        self.mark(uuid, new)

    def execute(self, *words: str) -> tuple[int, str, str]:
        """Run a command of ``nova-accel``; return status and output."""
        self.placement.clear()
        command = [*words, "--endpoint", self.placement.url]
        if self.nova is not None:
            command += ["--compute-endpoint", self.nova.url]
        status = programs.main(command)
        return status, *self.capsys.readouterr()
