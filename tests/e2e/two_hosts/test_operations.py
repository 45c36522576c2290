# SPDX-License-Identifier: Apache-2.0
"""A server with an mdev through its life, on two hosts with real kernels.

After each step Nova, Placement, both hosts' libvirt and both kernels say
the same.
"""

import contextlib
import functools
import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support import agreement
from tests.e2e.support.releases import on_all_releases
from tests.e2e.support.second_host import MTTY_1, MTTY_2, TwoHosts
from tests.e2e.support.site import Site, wait_for
from tests.lab.cloud.hosts import Host
from tests.support import examples

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("clean")]

_LOG = "nova-compute-2"
#: How often nova-compute is killed in an attach, and in a detach; within so
#: many seconds of what it begins with.
_KILLS = int(os.environ.get("NOVA_ACCEL_KILLS", "3"))
_MOST_S, _SEED = 1.0, 20261122
_ATTACH = ("attach", "--profile", MTTY_1)
_DETACH = ("detach", "attached-1")
_PATIENCE_S = 60
# Actions, and the states that they lead to, in a whole run.
_RARE_ACTIONS = (
    ("pause", "PAUSED"),
    ("unpause", "ACTIVE"),
    ("rescue", "RESCUE"),
    ("unrescue", "ACTIVE"),
    ("shelve", "SHELVED"),
    ("unshelve", "ACTIVE"),
)
_SOFTLY = "Instance soft rebooted successfully"


class Life:
    """One server, and what is done to it."""

    def __init__(self, two: TwoHosts, server: Any) -> None:
        self.two, self.lab, self.server = two, two.lab, server

    def do(self, action: str, state: str, **arguments: Any) -> None:
        """Ask for an action and wait for the state that it leads to."""
        self.lab.act(self.server, action, **arguments)
        self.server = self.lab.reach(self.server, state)

    def resize(self, flavor: Any, host: Host) -> None:
        """Resize to a flavor; the server's host is to be this one then."""
        two = self.two
        other = two.second if host == two.first else two.first
        with two.without(other):
            self.do("resize", "VERIFY_RESIZE", flavorRef=flavor.id)
        assert two.host_of(self.server) == host.name

    def await_guest(self) -> None:
        """Wait until the guest is up: it says so on its serial port."""
        place = self.lab.layout.instances / str(self.server.id)
        console = place / "console.log"
        wait_for(lambda: "U" in console.read_text(), "the guest")

    def confirm(self) -> None:
        self.do("confirmResize", "ACTIVE")


@on_all_releases
def test_what_is_done_to_a_server_where_it_is(
    lab: Site, two: TwoHosts
) -> None:
    image, flavor = two.image(), two.flavor(MTTY_2)
    life = Life(two, two.boot("e2e-life", two.second, flavor, image))
    two.check("booted", second=MTTY_2)
    (mdev,) = agreement.domains(two.second)[life.server.id]

    offset = lab.log_offset(_LOG)
    life.await_guest()  # or it does not see the power button
    life.do("reboot", "ACTIVE", type="SOFT")
    two.check("rebooted softly", second=MTTY_2)
    assert lab.logged(_LOG, _SOFTLY, offset)
    for action, state in (
        ("suspend", "SUSPENDED"),  # the guest gives its mdev away
        ("resume", "ACTIVE"),
        ("os-stop", "SHUTOFF"),
        ("os-start", "ACTIVE"),  # a hard reboot
        *(_RARE_ACTIONS if examples.IS_WHOLE else ()),
    ):
        life.do(action, state)
        two.check(action, second=MTTY_2)
        is_on = state in ("ACTIVE", "RESCUE", "PAUSED")
        assert bool(agreement.running(two.second)) == is_on, action
    life.do("createImage", "ACTIVE", name="e2e-picture")
    two.check("createImage", second=MTTY_2)
    life.do("rebuild", "ACTIVE", imageRef=image)
    two.check("rebuild", second=MTTY_2)
    assert agreement.domains(two.second) == {life.server.id: {mdev}}

    life.do("shelve", "SHELVED")
    life.do("shelveOffload", "SHELVED_OFFLOADED")
    # Nova deletes them after it has saved the state.
    wait_for(lambda: not lab.allocations(life.server), "no allocations")
    two.check("offloaded")
    life.do("unshelve", "ACTIVE", host=two.second.name)
    two.check("unshelved", second=MTTY_2)


@pytest.mark.long
@on_all_releases
def test_a_server_moves_between_two_hosts(lab: Site, two: TwoHosts) -> None:
    image = two.image()
    small, large, plain = map(two.flavor, (MTTY_1, MTTY_2, ""))
    first, second = two.first, two.second
    life = Life(two, two.boot("e2e-mover", first, large, image))
    two.check("booted", first=MTTY_2)

    life.do("migrate", "VERIFY_RESIZE", host=second.name)
    assert two.host_of(life.server) == second.name
    two.check("migrated", first=MTTY_2, second=MTTY_2)
    life.do("revertResize", "ACTIVE")
    two.check("reverted", first=MTTY_2)

    life.resize(small, second)
    two.check("resized, elsewhere", first=MTTY_2, second=MTTY_1)
    life.confirm()
    two.check("and confirmed", second=MTTY_1)
    life.resize(large, second)
    two.check("resized where it is", second=f"{MTTY_1} {MTTY_2}")
    life.confirm()
    two.check("and confirmed", second=MTTY_2)
    life.resize(plain, first)
    two.check("resized to nothing", second=MTTY_2)
    life.confirm()
    two.check("and confirmed")
    life.resize(large, second)
    two.check("resized from nothing", second=MTTY_2)
    life.confirm()
    two.check("and confirmed", second=MTTY_2)

    _lose(life, second, first)
    second.switch_on()
    assert agreement.domains(second).keys() == {life.server.id}
    second.start_compute()
    two.set_dead(second, False)
    wait_for(lambda: not agreement.domains(second), "the leftover to go")
    two.check("the dead host is back", first=MTTY_2)


@on_all_releases
def test_one_more_is_attached_and_detached(lab: Site, two: TwoHosts) -> None:
    """Seen by a guest that runs; it answers when it is to give it away."""
    image, flavor = two.image(), two.flavor(MTTY_2)
    life = Life(two, two.boot("e2e-attach", two.second, flavor, image))
    life.await_guest()
    both = f"{MTTY_1} {MTTY_2}"

    def ask(action: str, *words: str) -> str:
        conf = lab.layout.etc / "nova.conf"
        return lab.commanded(
            *("openstack", "accel", "server", action, life.server.id, *words),
            f"--config-file={conf}",
        )

    ask("attach", "--profile", MTTY_1)
    two.check("attached to a guest that runs", second=both)
    assert agreement.running(two.second) == {life.server.id}
    accelerators = json.loads(ask("show", "-f", "json"))
    assert [
        (accelerator["Name"], accelerator["State"])
        for accelerator in accelerators
    ] == [
        ("(flavor)", "in the guest"),
        ("attached-1", "in the guest"),
    ]
    refused = lab.command(
        *("openstack", "accel", "server", "attach", life.server.id),
        *("--profile", MTTY_1),
        f"--config-file={lab.layout.etc / 'nova.conf'}",
    )
    assert refused.returncode == 1
    assert MTTY_1 in refused.stderr
    two.check("refused: all are taken", second=both)

    life.do("reboot", "ACTIVE", type="HARD")
    two.check("rebooted hard", second=both)
    two.second.stop_compute()
    two.second.start_compute()
    two.check("restarted", second=both)
    life.await_guest()
    ask("detach", "attached-1")
    two.check("detached from a guest that runs", second=MTTY_2)
    assert agreement.running(two.second) == {life.server.id}

    life.do("os-stop", "SHUTOFF")
    ask("attach", "--profile", MTTY_1)
    two.check("attached to a server that is off", second=both)
    life.do("os-start", "ACTIVE")
    two.check("and started", second=both)
    lab.delete(life.server)
    lab.wait_gone(life.server)
    two.check("deleted")


@pytest.mark.long
def test_nova_compute_is_killed_meanwhile(lab: Site, two: TwoHosts) -> None:
    """At some moment of an attach, or of a detach; the guest runs on."""
    image, flavor = two.image(), two.flavor(MTTY_2)
    life = Life(two, two.boot("e2e-killed", two.second, flavor, image))
    life.await_guest()
    both = f"{MTTY_1} {MTTY_2}"
    chance = random.Random(_SEED)  # noqa: S311 - no secret

    def is_attached() -> bool:
        return len(agreement.domains(two.second)[life.server.id]) == 2

    kills = 0
    while kills < 2 * _KILLS:
        asks, back = (_DETACH, _ATTACH) if kills % 2 else (_ATTACH, _DETACH)
        action, *words = asks
        if is_attached() == (action == "attach"):
            wait_for(functools.partial(_is_done, life, *back), "the other way")
        with _begin_command(life, action, *words) as process:
            if not _is_begun(life, process):
                continue  # it has just started, or was done unseen
            time.sleep(chance.uniform(0, _MOST_S))
            two.second.kill_compute()
        kills += 1
        two.second.start_compute()
        wait_for(lambda: _task(life) is None, "the recovery to end")
        occasion = f"killed in {action}, {kills}: {is_attached()=}"
        print(occasion, flush=True)
        two.check(occasion, second=both if is_attached() else MTTY_2)
        assert agreement.running(two.second) == {life.server.id}
    lab.delete(life.server)
    lab.wait_gone(life.server)
    two.check("deleted")


@contextlib.contextmanager
def _begin_command(life: Life, action: str, *words: str) -> Iterator[Any]:
    """Ask nova-compute for something, and wait no longer at the end."""
    conf = life.lab.layout.etc / "nova.conf"
    process = life.lab.begin(
        *("openstack", "accel", "server", action, life.server.id, *words),
        f"--config-file={conf}",
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _is_done(life: Life, action: str, *words: str) -> bool:
    """Have it done to the end; a service that has just started refuses."""
    with _begin_command(life, action, *words) as process:
        return bool(process.wait(_PATIENCE_S) == 0)


def _is_begun(life: Life, process: Any) -> bool:
    """Wait until nova-compute is at work; return whether that was seen."""
    while process.poll() is None:
        if _task(life) is not None:
            return True
    return False


def _task(life: Life) -> str | None:
    server = life.lab.api.compute.get_server(life.server.id)
    task: str | None = server.task_state
    return task


def _lose(life: Life, dead: Host, other: Host) -> None:
    """Let a server's host die, and evacuate the server to another one."""
    two = life.two
    dead.stop_compute()
    dead.switch_off()
    two.set_dead(dead, True)
    life.do("evacuate", "ACTIVE", host=other.name)
    # Nova saves the host after the state.
    wait_for(lambda: two.host_of(life.server) == other.name, "the new host")
    alone = agreement.Agreement(two.lab, (other,))
    (mdevs,) = alone.check("evacuated").values()
    assert [*mdevs.values()] == [MTTY_2]
