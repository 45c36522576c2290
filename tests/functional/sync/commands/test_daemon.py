# SPDX-License-Identifier: Apache-2.0
"""``placement-sync`` as a daemon process: signals, systemd, metrics."""

import contextlib
import fcntl
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from nova_accel.model import names
from tests.functional.sync.support.sites import (
    CARD,
    HOST,
    NODE,
    OTHER,
    ROOT,
    SECRET,
    Site,
)

# A process that takes longer than this has hung.
SECONDS = 60.0
COMMAND = (sys.executable, "-W", "ignore", "-m", "placement_sync.cli.main")


class Child:
    """The command in a process of its own."""

    def __init__(
        self, site: Site, *arguments: str, **environment: str
    ) -> None:
        self.log = site.conf.with_name("stderr")
        with self.log.open("w") as words:
            self.running = subprocess.Popen(  # noqa: S603
                [*COMMAND, "run", *arguments, "--config-file", str(site.conf)],
                stdout=words,
                stderr=words,
                env={**os.environ, **environment},
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + SECONDS
        while not condition():
            assert self.running.poll() is None, self.output
            assert time.monotonic() < until, self.output
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        self.running.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return self.running.wait(SECONDS)


@contextlib.contextmanager
def child(site: Site, *arguments: str, **environment: str) -> Iterator[Child]:
    process = Child(site, *arguments, **environment)
    try:
        yield process
    finally:
        process.running.kill()
        process.running.wait()
    assert SECRET not in process.output


def has(site: Site, address: str) -> bool:
    return names.provider_name(HOST, address) in site.names()


def pull(site: Site, address: str) -> None:
    (site.root / "sys/bus/pci/devices" / address).unlink()
    (site.root / "sys/class/mdev_bus" / address).unlink()


@pytest.mark.parametrize(
    "last",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_signals_start_a_pass_and_stop_the_daemon(
    site: Site, last: signal.Signals
) -> None:
    with child(site, *NODE, "--interval", "3600") as daemon:
        daemon.wait_for(lambda: "set inventories of" in daemon.output)
        daemon.wait_for(lambda: has(site, OTHER))
        pull(site, OTHER)
        daemon.send(signal.SIGHUP)
        daemon.wait_for(lambda: not has(site, OTHER))
        assert has(site, CARD)
        daemon.wait_for(
            lambda: (
                f"delete provider {names.provider_name(HOST, OTHER)}"
                in daemon.output
            )
        )
        assert "fresh" in site.run("status")
        assert daemon.end(last) == 0
        assert daemon.output.splitlines()[-1] == "placement-sync stopped"
        assert "Traceback" not in daemon.output


def test_a_drain_starts_a_pass(site: Site) -> None:
    with child(site, *NODE, "--interval", "3600") as daemon:
        daemon.wait_for(lambda: has(site, OTHER))
        assert site.run("drain", CARD, "--reason", "r", "--wait", *NODE)
        assert names.DRAINED_TRAIT in site.read(CARD, "traits")
        assert daemon.end() == 0


def test_passes_run_at_the_interval(site: Site) -> None:
    gone = names.provider_name(HOST, OTHER)
    with child(site, *NODE, "--interval", "0.2") as daemon:
        daemon.wait_for(lambda: has(site, OTHER))
        pull(site, OTHER)
        daemon.wait_for(lambda: f"delete provider {gone} (" in daemon.output)
        # The last lines of that pass are the problems of the three mdevs.
        daemon.wait_for(lambda: daemon.output.count(f"mdev on {OTHER},") == 3)
        output = daemon.output
        site.placement.clear()
        daemon.wait_for(lambda: len(site.placement.requests()) > 2)
        assert daemon.output == output  # An unchanged host logs nothing.
        sent = {
            (request.method, request.path)
            for request in site.placement.clear()
        }
        assert sent == {("GET", f"/resource_providers?in_tree={ROOT}")}
        assert daemon.end() == 0


def test_the_daemon_retries_placement(site: Site) -> None:
    url = site.placement.url
    with socket.socket() as listener:
        # The port stays in use and refuses connections.
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        site.write_conf(f"http://127.0.0.1:{port}")
        with child(site, *NODE, "--interval", "0.1") as daemon:
            daemon.wait_for(lambda: "it will be retried" in daemon.output)
            time.sleep(1)
            assert daemon.output.count("it will be retried") == 1
            assert "STALE" in site.run("status", status=1)
            assert daemon.end() == 0
    site.write_conf(url)
    with child(site, *NODE, "--interval", "3600") as daemon:
        daemon.wait_for(lambda: has(site, OTHER))
        assert daemon.end() == 0


def test_the_daemon_waits_for_the_compute_node(site: Site) -> None:
    with child(site, "--host", "later", "--interval", "0.1") as daemon:
        daemon.wait_for(lambda: "is not a compute node" in daemon.output)
        site.register("later", "00000000-0000-4000-8000-000000000002")
        name = names.provider_name("later", CARD)
        daemon.wait_for(lambda: name in site.names())
        daemon.wait_for(lambda: "succeeded again" in daemon.output)
        assert daemon.end() == 0


def test_an_invalid_setting_ends_the_daemon(site: Site) -> None:
    site.conf.write_text("[nova_accel]\nsync_interval = often\n")
    with child(site, *NODE) as daemon:
        assert daemon.running.wait(SECONDS) == 2
        assert daemon.output.count("\n") == 1


def test_systemd_is_notified(site: Site, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(SECONDS)
        with child(
            site,
            *NODE,
            "--interval",
            "3600",
            NOTIFY_SOCKET=path,
            JOURNAL_STREAM="8:1",
        ) as daemon:
            assert listener.recv(4096) == b"READY=1"
            assert listener.recv(4096).startswith(b"STATUS=last pass: ")
            assert daemon.end() == 0
            assert listener.recv(4096) == b"STOPPING=1"
            assert daemon.output.startswith("<6>placement-sync started")


def test_a_pass_waits_for_the_lock(site: Site) -> None:
    site.state.mkdir()
    with (site.state / "sync.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with child(site, *NODE, "--once") as second:
            second.wait_for(lambda: "waiting" in second.output)
            assert site.writes() == 0
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert second.running.wait(SECONDS) == 0
    assert has(site, CARD)
