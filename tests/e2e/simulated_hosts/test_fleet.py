# SPDX-License-Identifier: Apache-2.0
"""The page "See the fleet", followed on a laptop and on a controller.

There are the lab's real host and three simulated ones, real Keystone, Nova
and Placement, and two people: an administrator, and a member of a project.
Each test compares what the commands print with a file below tests/golden.
"""

import json
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.support import client_machine
from tests.e2e.support.client_machine import MEMBER, ClientMachine
from tests.e2e.support.simulated_site import CARDS, L40S, NEAR, Simulated
from tests.e2e.support.site import Site, wait_for
from tests.lab.cloud.cloud import IMAGE
from tests.lab.vm import topology
from tests.support import golden

pytestmark = [pytest.mark.lab, pytest.mark.long]

_T4 = f"labvm/{topology.T4_ADDRESS}"
_SIZE = ("--vcpus", "1", "--ram", "64", "--disk", "1")
#: Flavors by name, and what they request: a card of the real host, and one
#: of a simulated one.
_FLAVORS: Mapping[str, tuple[str, ...]] = {
    "e2e-small": ("--profile", "T4-4Q", "--device", _T4),
    "e2e-whole": ("--profile", "L40S-48Q", "--device", f"{L40S}/{CARDS}"),
}
_TOO_LARGE = ("--profile", "L40S-48Q", "--device", f"{L40S}/{NEAR}")
#: What differs between two runs, and what replaces it.
_RANDOM = {
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": (
        "00000000-0000-0000-0000-{:012}"
    ),
    r"\b(?!0{30})[0-9a-f]{32}\b": "{:032}",
}
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\+00:00)")
# A line that is printed while an answer takes long.
_WAIT = re.compile(r"^nova-accel: waiting for .*\n", re.MULTILINE)
_AGE = re.compile(r"(?<=\(admin, )\d+m\b")


class Transcript:
    """Commands of a user with their output, as in a manual.

    The prompt shows the machine; each call may be made on another one.
    """

    def __init__(self, user: str = "admin") -> None:
        self._user = user
        self._text = ""

    def run(
        self,
        client: ClientMachine,
        command: str,
        *words: str,
        status: int = 0,
    ) -> str:
        """Run ``openstack accel``, and note it; return its output."""
        argv = ("accel", *command.split(), *words)
        done = client.run(*argv, user=self._user)
        output = done.stdout + done.stderr
        assert done.returncode == status, f"{argv}: {output}"
        command_line = f"openstack {shlex.join(argv)}"
        self._text += f"{self._user}@{client.name}$ {command_line}\n{output}\n"
        return str(done.stdout)

    def check(self, name: str) -> None:
        """Compare with a golden file; random numbers are counted first."""
        text = _WAIT.sub("", self._text)
        text = _AGE.sub("0m", _TIME.sub(r"2026-05-04T06:00:00\1", text))
        for pattern, form in _RANDOM.items():
            values = dict.fromkeys(re.findall(pattern, text))
            for number, value in enumerate(values, 1):
                text = text.replace(value, form.format(number))
        golden.check(golden.PLACE / "fleet" / name, text)


@pytest.fixture(scope="module")
def laptop(
    lab: Site, tmp_path_factory: pytest.TempPathFactory
) -> ClientMachine:
    return client_machine.install_laptop(
        lab, tmp_path_factory.mktemp("laptop")
    )


@pytest.fixture(scope="module")
def controller(
    lab: Site, tmp_path_factory: pytest.TempPathFactory
) -> ClientMachine:
    return client_machine.use_controller(
        lab, tmp_path_factory.mktemp("controller")
    )


@pytest.fixture(scope="module", autouse=True)
def fleet(hosts: Simulated) -> Iterator[Site]:
    """Return the cloud with its hosts and people, and no server."""
    lab = hosts.lab
    lab.clean()
    hosts.delete_flavors()
    client_machine.create_member(lab)
    yield lab
    client_machine.delete_member(lab)
    lab.clean()


@pytest.fixture(scope="module")
def servers(fleet: Site, laptop: ClientMachine) -> Iterator[None]:
    """Create the flavors, and a server of each: alice has the second."""
    for (name, request), user in zip(
        _FLAVORS.items(), ("admin", MEMBER), strict=True
    ):
        done = laptop.run("accel", "flavor", "create", name, *_SIZE, *request)
        assert done.returncode == 0, done.stderr
        done = laptop.run(
            *("server", "create", f"e2e-{user}", "--flavor", name),
            *("--image", IMAGE, "--nic", "none", "--wait"),
            user=user,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    yield
    for user in ("admin", MEMBER):
        laptop.run("server", "delete", "--wait", f"e2e-{user}", user=user)


def test_an_empty_fleet(laptop: ClientMachine) -> None:
    admin = Transcript()

    admin.run(laptop, "host list")
    admin.run(laptop, "device list")
    admin.run(laptop, "device list", "--model", "T4", "--free", "--long")
    admin.run(laptop, "profile list")
    admin.run(laptop, "allocation list")
    admin.run(laptop, "usage list")
    admin.check("lab-empty.txt")


@pytest.mark.usefixtures("servers")
def test_an_administrator_sees_who_holds_what(laptop: ClientMachine) -> None:
    admin = Transcript()

    admin.run(laptop, "device list", "--servers")
    admin.run(laptop, "device show", _T4)
    admin.run(laptop, "allocation list", "--long")
    admin.run(laptop, "allocation list", "--server", "e2e-admin")
    admin.run(laptop, "usage list")
    admin.run(laptop, "flavor show", "e2e-small")
    admin.run(laptop, "capacity show", "--flavor", "e2e-small")
    admin.run(laptop, "capacity show", "--flavor", "e2e-whole", status=1)
    admin.run(laptop, "explain", "e2e-whole", status=1)
    admin.run(laptop, "explain", "e2e-admin")
    admin.run(laptop, "report", "--format", "text", "--host", L40S)
    admin.check("lab-in-use.txt")


@pytest.mark.usefixtures("servers")
def test_programs_read_the_same(laptop: ClientMachine) -> None:
    admin = Transcript()
    commands = (
        "host list",
        f"device list --host {L40S} --long --servers",
        f"device show {_T4}",
        "profile list --long",
        "allocation list --long",
        "usage list",
        "flavor show e2e-small",
        "capacity show --flavor e2e-small",
        "explain e2e-small",
    )
    for command in commands:
        output = admin.run(laptop, command, "-f", "json")
        assert json.loads(output), command
    admin.check("lab-json.txt")


@pytest.mark.usefixtures("servers")
def test_a_member_sees_own_servers_and_flavors(laptop: ClientMachine) -> None:
    alice = Transcript(MEMBER)

    alice.run(laptop, "allocation list")
    alice.run(laptop, "flavor show", "e2e-whole")
    for refused in ("device list", "host list", "usage list", "report"):
        alice.run(laptop, refused, status=1)
    alice.check("lab-member.txt")


@pytest.mark.usefixtures("servers")
def test_flavors_are_changed_and_imported(
    laptop: ClientMachine, tmp_path: pathlib.Path
) -> None:
    """An import of what Nova has changes nothing; a dry run neither."""
    admin = Transcript()
    flavors = tmp_path / "flavors.json"
    listed = laptop.run("flavor", "list", "--long", "-f", "json")
    flavors.write_text(listed.stdout)

    admin.run(laptop, "flavor set", "e2e-small", "--numa-policy", "preferred")
    admin.run(laptop, "flavor set", "e2e-small", *_TOO_LARGE, "--dry-run")
    admin.run(laptop, "flavor show", "e2e-small")
    admin.run(laptop, "flavor set", "e2e-small", "--numa-policy", "none")
    admin.check("lab-flavors.txt")
    words = ("accel", "flavor", "import", str(flavors))
    done = laptop.run(*words)
    assert done.returncode == 0, done.stderr
    again = laptop.run(*words, "-f", "json")
    results = {
        row["Flavor"]: row["Result"] for row in json.loads(again.stdout)
    }
    assert {results[name] for name in _FLAVORS} == {"unchanged"}


@pytest.mark.usefixtures("servers")
def test_cards_are_drained_from_a_controller(
    laptop: ClientMachine, controller: ClientMachine
) -> None:
    """A laptop has no message bus, so it can't drain, and says so."""
    admin = Transcript()
    drain = ("device set", _T4, "--drain", "--reason", "fan fails")
    drained = ("device", "list", "--state", "drained")

    def is_offered() -> bool:
        listed = laptop.run("accel", *drained, "-f", "json")
        return not json.loads(listed.stdout)

    admin.run(laptop, *drain, status=1)
    assert is_offered()
    admin.run(controller, *drain)
    wait_for(lambda: not is_offered(), "the drain")
    admin.run(laptop, *drained)
    admin.run(controller, *drained)
    admin.run(laptop, "explain", "e2e-small", "--host", "labvm", status=1)
    admin.run(controller, "device set", _T4, "--undrain")
    wait_for(is_offered, "the end of the drain")
    admin.run(controller, "device heal", _T4)
    admin.check("lab-drain.txt")


@pytest.mark.usefixtures("servers")
def test_a_profile_is_attached_from_a_controller(
    fleet: Site, laptop: ClientMachine, controller: ClientMachine
) -> None:
    admin = Transcript()
    server = fleet.api.compute.find_server("e2e-admin")
    fleet.act(server, "os-stop")
    fleet.reach(server, "SHUTOFF")

    admin.run(controller, "server show", "e2e-admin")
    admin.run(controller, "server attach", "e2e-admin", "--profile", "T4-4Q")
    admin.run(controller, "server show", "e2e-admin")
    admin.run(laptop, "allocation list", "--device", _T4)
    admin.run(controller, "server detach", "e2e-admin", "attached-1")
    admin.run(controller, "server show", "e2e-admin")
    assert len(fleet.mdevs()) == 1
    admin.check("lab-attach.txt")
