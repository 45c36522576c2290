# SPDX-License-Identifier: Apache-2.0
"""A host for audits, with every source that an audit reads."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nova_accel import model
from nova_accel.host.execute import privileged
from nova_accel.host.state import claims_file
from nova_accel.model import names
from tests.functional.sync.commands import programs
from tests.functional.sync.support import nova_standin, servers
from tests.lab import fakehost
from tests.support.hosts.simulated import GPU, OTHER, ROOT

A = "aaaaaaaa-0000-4000-8000-00000000000a"
NO_SERVER = "dddddddd-0000-4000-8000-00000000000d"
MOVE = "eeeeeeee-0000-4000-8000-00000000000e"
DEAD = "99999999-0000-4000-8000-000000000009"
TYPE = "nvidia-232"
CARD, SECOND = (names.provider_uuid(ROOT.uuid, each) for each in (GPU, OTHER))


def mdev(slot: str, provider: str = CARD) -> str:
    return names.mdev_uuid(provider, slot)


@dataclasses.dataclass
class Site:
    """A host with its kernel, Placement, Nova, libvirt and claims file."""

    kernel: fakehost.Controller
    placement: servers.Server
    nova: nova_standin.Nova
    libvirt: Any
    claims: claims_file.ClaimsFile
    config: Path
    capsys: pytest.CaptureFixture[str]
    published: list[model.Claim] = dataclasses.field(default_factory=list)

    def run(self, *options: str, status: int | None = None) -> dict[str, Any]:
        """Run an audit and return its report."""
        code, out, err = self.execute("audit", "-f", "json", *options)
        assert status in (None, code), (code, out, err)
        report: dict[str, Any] = json.loads(out)
        return report | {"status": code, "log": err}

    def execute(
        self, *arguments: str, nova: bool = True
    ) -> tuple[int, str, str]:
        command = [
            arguments[0],
            f"--config-file={self.config}",
            f"--endpoint={self.placement.url}",
            f"--host={ROOT.name}",
            f"--host-uuid={ROOT.uuid}",
        ]
        if arguments[0] == "audit":
            command.append("--pause=0")
            if nova:
                command.append(f"--compute-endpoint={self.nova.url}")
        self.capsys.readouterr()
        status = programs.main([*command, *arguments[1:]])
        return status, *self.capsys.readouterr()

    def allocate(
        self,
        consumer: str,
        *provider: str,
        kind: str = "INSTANCE",
        **amounts: int,
    ) -> None:
        body = self.placement.call("GET", f"/allocations/{consumer}")
        assert isinstance(body, dict)
        resources = {each: {"VGPU": 1} for each in provider}
        if amounts:
            resources[ROOT.uuid] = amounts
        self.placement.call(
            "PUT",
            f"/allocations/{consumer}",
            {
                "allocations": {
                    uuid: {"resources": each}
                    for uuid, each in resources.items()
                },
                "project_id": "p",
                "user_id": "u",
                "consumer_type": kind,
                "consumer_generation": body.get("consumer_generation"),
            },
        )

    def remove_allocation(
        self, consumer: str, *, is_all: bool = False
    ) -> None:
        """Remove a server's allocation of the card, as an old backup does.

        :param is_all: remove its allocation of the compute node, too.
        """
        body = self.read_allocations(consumer)
        del body["allocations"][CARD]
        if is_all:
            body["allocations"] = {}
        self.placement.call("PUT", f"/allocations/{consumer}", body)

    def amounts(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return the amounts of a consumer, by provider."""
        allocations = self.read_allocations(consumer)["allocations"]
        return {uuid: each["resources"] for uuid, each in allocations.items()}

    def read_allocations(self, consumer: str) -> dict[str, Any]:
        body = self.placement.call("GET", f"/allocations/{consumer}")
        assert isinstance(body, dict)
        return body

    def make(self, slot: str, provider: str = CARD, at: str = GPU) -> None:
        uuid = mdev(slot, provider)
        root = str(self.kernel.root)
        assert privileged.create_mdev(root, at, TYPE, uuid) == 0

    def define(self, uuid: str, *mdevs: str) -> Any:
        devices = "".join(
            '<hostdev mode="subsystem" type="mdev" model="vfio-pci">'
            f'<source><address uuid="{each}"/></source></hostdev>'
            for each in mdevs
        )
        domain = self.libvirt.defineXML(
            f'<domain type="test"><name>{uuid[:8]}</name><uuid>{uuid}</uuid>'
            "<memory>1024</memory><os><type>hvm</type></os>"
            f"<devices>{devices}</devices></domain>"
        )
        domain.create()
        return domain

    def claim(self, consumer: str, *slots: str) -> None:
        """Publish the slots of a server, beside those of others."""
        others = [c for c in self.published if c.consumer != consumer]
        claims = [
            model.Claim(
                consumer=consumer,
                provider=CARD,
                device=GPU,
                profile="GRID T4-4Q",
                slot=slot,
                parent=GPU,
                handle=mdev(slot),
                technology="mdev",
                state=model.ClaimState.MADE,
            )
            for slot in slots
        ]
        self.published = claims + others
        self.claims.write(ROOT, self.published, ())

    def start(self, consumer: str, slot: str) -> None:
        """Start a server, recorded by every source."""
        self.nova.add_server(consumer, ROOT.name)
        self.allocate(consumer, CARD, VCPU=1)
        self.claim(consumer, slot)
        self.make(slot)
        self.define(consumer, mdev(slot))


def hide(site: Site) -> None:
    site.nova.add_server(NO_SERVER, "elsewhere")
    site.nova.hidden.add(NO_SERVER)


def move(site: Site) -> None:
    """Add a migration on the second page of the list."""
    for number in range(3):
        site.nova.add_move(f"m{number}", A, "confirmed", ROOT.name)
    site.nova.add_move(NO_SERVER, A, "migrating", ROOT.name)


def break_paths(*paths: str) -> Callable[[Site], None]:
    return lambda site: setattr(site.nova, "broken", paths)


def refuse_paths(*paths: str) -> Callable[[Site], None]:
    return lambda site: setattr(site.nova, "refused", paths)


def write_for_another(site: Site) -> None:
    site.claims.write(dataclasses.replace(ROOT, uuid=DEAD, name="x"), (), ())


def point_elsewhere(site: Site) -> None:
    text = site.config.read_text().replace("test://", "nothing://")
    site.config.write_text(text)


# Evidence of a consumer, and sources that can't deny one.
PRESENT: dict[str, Callable[[Site], object]] = {
    "server": lambda site: site.nova.add_server(NO_SERVER, ROOT.name),
    "server that is scheduled": lambda site: site.nova.add_server(
        NO_SERVER, ""
    ),
    "move": move,
    "claim": lambda site: site.claim(NO_SERVER, "slot-5"),
    "domain": lambda site: site.define(NO_SERVER),
}
UNSURE: dict[str, Callable[[Site], object]] = {
    "server of a hidden project": hide,
    "broken servers": break_paths("/servers"),
    "one broken server": break_paths(f"/servers/{NO_SERVER}"),
    "refused list": refuse_paths("/servers/detail"),
    "broken migrations": break_paths("/os-migrations"),
    "refused hypervisors": refuse_paths("/os-hypervisors"),
    "another Nova": lambda site: site.nova.hypervisors.clear(),
    "no claims file": lambda site: Path(site.claims.path).unlink(),
    "claims file of another node": write_for_another,
    "no libvirt": point_elsewhere,
}
