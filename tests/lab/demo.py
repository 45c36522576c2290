# SPDX-License-Identifier: Apache-2.0
"""The main job, shown with commands that can be repeated by hand.

Each step prints the command, its output and what it proves; the demo ends
with status 1 at the first step that is not as promised.
"""

import re
import shlex
import sys
import time

from tests.lab.cloud import actual_state, machine
from tests.lab.cloud.cloud import IMAGE, Cloud
from tests.lab.cloud.layout import Layout
from tests.lab.cloud.processes import LabError, run, say, tail

_FLAVOR = "accelerated"
_CLASS = "CUSTOM_MDEV"
_TRAIT = "CUSTOM_MDEV_MTTY_2"
_SERVERS = ("first", "second", "third")
_DEVICE_PROVIDER = r"\S*_accel_mtty\b"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class UnexpectedError(LabError):
    """A step of the demo was not as promised."""


class Demo:
    """The steps, in order, and what they know of each other."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._env = machine.client_environment(layout)
        self._uuids: dict[str, str] = {}

    def clean(self) -> None:
        """Delete what an earlier demo that failed may have left."""
        leftovers = actual_state.server_names(self._layout) & set(_SERVERS)
        if leftovers:
            self._cli(f"server delete --wait {' '.join(sorted(leftovers))}")
        if _FLAVOR in actual_state.flavor_names(self._layout):
            self._cli(f"flavor delete {_FLAVOR}")

    def report(self) -> None:
        """Show what placement knows of the devices."""
        self._title("The devices, as placement has them")
        listed = self._cli("resource provider list --sort-column name")
        match = re.search(rf"({_UUID}) \| {_DEVICE_PROVIDER}", listed)
        self._expect(match is not None, "our device is a child provider")
        provider = match[1] if match else ""
        text = self._cli(f"resource provider inventory list {provider}")
        self._expect(_CLASS in text, f"it has an inventory of {_CLASS}")
        text = self._cli(f"resource provider trait list {provider}")
        self._expect(_TRAIT in text, f"it can make {_TRAIT}")

    def boot(self) -> None:
        """Show two servers get a slot each, and a third none."""
        self._title("A flavor that asks for an mdev, and two servers")
        self._cli(
            f"flavor create {_FLAVOR} --ram 64 --vcpus 1 --disk 1"
            f" --property resources_ACCEL1:{_CLASS}=1"
            f" --property trait_ACCEL1:{_TRAIT}=required -c properties"
        )
        for name in _SERVERS[:2]:
            self._boot(name)
        self._expect(
            len(self._mdevs()) == 2, "two servers hold two different mdevs"
        )
        self._title("A third server: the slots are gone")
        log = self._layout.log / "nova-scheduler.log"
        seen = log.stat().st_size
        self._cli(f"{self._create(_SERVERS[2])} -c id", status=1)
        text = self._cli(f"server show {_SERVERS[2]} -c fault -f json", 0, 600)
        self._expect("No valid host" in text, "refused, and says why")
        self._print(f"$ grep 'No host can serve' {log}")
        reasons = actual_state.log_lines(log, "No host can serve", seen)
        self._print("\n".join(reasons))
        self._expect(bool(reasons), "nova-scheduler logged the reason")

    def survive(self) -> None:
        """Show that a hard reboot and a restart lose nothing."""
        self._title("A hard reboot keeps the same mdev")
        before = self._hostdev("first")
        self._cli("server reboot --hard --wait first")
        self._expect(self._hostdev("first") == before, f"it is {before} again")
        self._title("nova-compute is restarted while the servers run")
        mdevs_before = self._mdevs()
        self._print("$ tests/lab/lab restart-compute")
        Cloud(self._layout).restart_compute()
        self._expect(self._mdevs() == mdevs_before, "the mdevs are untouched")

    def delete(self) -> None:
        """Show that nothing is left of deleted servers."""
        self._title("Delete: nothing is left")
        self._cli(f"server delete --wait {' '.join(_SERVERS)}")
        self._cli(f"flavor delete {_FLAVOR}")
        self._expect(self._mdevs() == set(), "no mdev")
        for name in _SERVERS[:2]:
            text = self._cli(
                "resource provider allocation show"
                f" {self._uuids[name]} -f value"
            )
            self._expect(not text.strip(), "no allocation")
        claims = actual_state.claims(self._layout)
        self._expect(claims == {}, "no claim in nova's database")

    def _create(self, name: str) -> str:
        return (
            f"server create {name} --flavor {_FLAVOR} --image {IMAGE}"
            " --nic none --wait"
        )

    def _boot(self, name: str) -> None:
        """Create a server and show what it got."""
        text = self._cli(f"{self._create(name)} -c id -c name -c status")
        self._expect("ACTIVE" in text, f"{name} is ACTIVE")
        match = re.search(rf"\| id +\| ({_UUID})", text)
        self._uuids[name] = match[1] if match else ""
        uuid = self._hostdev(name)
        self._expect(uuid in self._mdevs(), f"its mdev {uuid} exists")
        text = self._cli(
            f"resource provider allocation show {self._uuids[name]}"
            " -c resources"
        )
        self._expect(_CLASS in text, f"placement allocated {_CLASS}")
        slots = actual_state.claims(self._layout).get(self._uuids[name], [])
        self._expect(len(slots) == 1, f"nova claimed {' '.join(slots)}")

    def _hostdev(self, name: str) -> str:
        """Show a server's hostdev and return its mdev's uuid."""
        text = self._run(
            ["virsh", "dumpxml", self._uuids[name], "--xpath", "//hostdev"]
        )
        sources = actual_state.hostdev_sources(text, "mdev")
        self._expect(len(sources) == 1, "one hostdev of type mdev")
        return sources[0]

    def _mdevs(self) -> set[str]:
        """Show and return the uuids of the compute host's mdevs."""
        self._print(f"$ tests/lab/lab hardware ls {actual_state.MDEV_DEVICES}")
        mdevs = actual_state.mdevs(self._layout)
        self._print("\n".join(sorted(mdevs)) or "(nothing)")
        return mdevs

    def _cli(self, command: str, status: int = 0, limit: int = 0) -> str:
        return self._run(["openstack", *shlex.split(command)], status, limit)

    def _run(self, argv: list[str], status: int = 0, limit: int = 0) -> str:
        """Show a command and its output; return the output.

        A limit cuts what is shown: a fault carries Nova's whole stack.
        """
        self._print(f"$ {shlex.join(argv)}")
        done = run(argv, self._env)
        output = f"{done.stdout}{done.stderr}".strip()
        cut = limit and len(output) > limit
        self._print(f"{output[:limit]} [...]" if cut else output)
        if done.returncode != status:
            raise UnexpectedError(
                f"status {done.returncode} instead of {status}:"
                f" {shlex.join(argv)}"
            )
        return output

    def _expect(self, true: bool, text: str) -> None:
        if not true:
            raise UnexpectedError(f"not so: {text}")
        self._print(f"  => {text}")

    def _title(self, text: str) -> None:
        sys.stdout.write("\n")
        say(f"== {text}")

    def _print(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def show(layout: Layout) -> int:
    """Show the main job; return 0, or 1 at the first broken promise."""
    began = time.monotonic()
    demo = Demo(layout)
    try:
        demo.clean()
        demo.report()
        demo.boot()
        demo.survive()
        demo.delete()
    except LabError as error:
        for name in ("nova-compute", "nova-scheduler"):
            sys.stdout.write(f"{tail(layout.log / f'{name}.log', 15)}\n")
        sys.stdout.write(f"\ndemo: {error}\n")
        return 1
    sys.stdout.write(
        f"\nAll as promised, in {time.monotonic() - began:.0f} s."
        " The lab stays up:\n"
        "  tests/lab/lab exec openstack server list\n"
        "  tests/lab/lab exec virsh list\n"
        "  tests/lab/lab hardware ls /sys/class/mdev_bus\n"
        "  tests/lab/lab exec bash     (a shell with openstack and virsh)\n"
        f"  logs are in {layout.log}\n"
        "  tests/lab/lab down          ends it\n\n"
    )
    return 0
