# SPDX-License-Identifier: Apache-2.0
"""A host with nova.conf and Placement, for tests of commands."""

import json
import pathlib
import uuid
from typing import Any

import pytest

from nova_accel.model import names
from tests.functional.sync.commands import programs
from tests.functional.sync.support import servers
from tests.hosts import look

HOST = "node1.example.org"
ROOT = str(uuid.UUID(int=0x1111))
CARD, OTHER = "0000:3b:00.0", "0000:af:00.0"
SECRET = "s3cret-of-the-service"  # noqa: S105
FOUR_Q = "CUSTOM_VGPU_NVIDIA_T4_4Q"
_WAITING = "nova-accel: waiting for "
Output = pytest.CaptureFixture[str]


class Site:
    """A host with two T4, its nova.conf, and its Placement."""

    def __init__(
        self, placement: servers.Server, place: pathlib.Path, capsys: Output
    ) -> None:
        self.placement = placement
        self.root = look.make("t4-mdev", place / "host")
        self.state = place / "state"
        self.conf = place / "nova.conf"
        self.capsys = capsys
        self.write_conf(placement.url)

    def write_conf(self, url: str) -> None:
        self.conf.write_text(
            f"[nova_accel]\nroot = {self.root}\nstate_dir = {self.state}\n"
            f"[placement]\nauth_type = admin_token\nendpoint = {url}\n"
            f"token = admin\npassword = {SECRET}\n"
        )

    def register(self, name: str = HOST, own: str = ROOT) -> None:
        """Create the compute node's provider, as nova-compute does."""
        self.placement.call(
            "POST", "/resource_providers", {"name": name, "uuid": own}
        )
        self.placement.clear()

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run the command; return its output."""
        text, words = self.execute(*arguments, status=status)
        assert _drop_waits(words) == ""
        return text

    def fail(self, *arguments: str, status: int = 2) -> str:
        """Run the command, which fails; return its only error line."""
        text, words = self.execute(*arguments, status=status)
        words = _drop_waits(words)
        assert text == "" and words.count("\n") == 1
        program = "placement-sync" if arguments[0] == "run" else "nova-accel"
        assert words.startswith(f"{program}: ")
        return words

    def execute(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        command = [*arguments, "--config-file", str(self.conf)]
        assert programs.main(command) == status, self.capsys.readouterr()
        output = self.capsys.readouterr()
        assert SECRET not in output.out + output.err
        return output.out, output.err

    def once(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        text = self.run(
            "run", "--once", "-f", "json", *arguments, status=status
        )
        report: dict[str, Any] = json.loads(text)
        return report

    def writes(self) -> int:
        return sum(request.is_write for request in self.placement.clear())

    def ask(self, path: str) -> Any:
        answer = self.placement.call("GET", path)
        self.placement.clear()
        return answer

    def names(self) -> set[str]:
        answer = self.ask("/resource_providers")
        return {provider["name"] for provider in answer["resource_providers"]}

    def read(self, address: str, what: str) -> Any:
        own = names.provider_uuid(ROOT, address)
        return self.ask(f"/resource_providers/{own}/{what}")[what]


def _drop_waits(words: str) -> str:
    """Return error lines without those of waits, which a busy machine has."""
    return "".join(
        line
        for line in words.splitlines(keepends=True)
        if not line.startswith(_WAITING)
    )


NODE = ("--host", HOST)
