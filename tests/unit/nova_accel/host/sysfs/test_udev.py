# SPDX-License-Identifier: Apache-2.0
"""The udev monitor calls back after the kernel's uevents.

A write of ``change`` into a device's ``uevent`` file makes the kernel
send one (Documentation/ABI/testing/sysfs-uevent); it changes nothing.
"""

import contextlib
import fcntl
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from nova_accel.host.sysfs import udev

ROOT = pathlib.Path(__file__).resolve().parents[5]
# A device that each kernel has, of a subsystem that we don't listen to.
NULL = "/sys/class/mem/null/uevent"
ZERO = "/sys/class/mem/zero/uevent"
PATIENCE_S = 10.0
# So long after an event nothing came of it.
SILENCE_S = 0.3


def change(path: str, times: int = 1) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        for _ in range(times):
            os.write(file, b"change")
    finally:
        os.close(file)


def has_uevents() -> bool:
    """Return whether this kernel sends events to this process."""
    rang = threading.Event()
    bell = udev.UdevMonitor(rang.set, ("mem",))
    if not bell.start():
        return False
    try:
        change(NULL)
        return rang.wait(2)
    except OSError:
        return False
    finally:
        bell.stop(PATIENCE_S)


@pytest.fixture(scope="module", autouse=True)
def events() -> Iterator[None]:
    """Skip where no uevents come; run these tests once at a time.

    The kernel sends the events of one run to all others of the machine.
    Only root can make it send them.
    """
    # A lock that another user created could not be opened.
    name = f"nova-accel-uevents-{os.geteuid()}.lock"
    lock = pathlib.Path(tempfile.gettempdir(), name)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not has_uevents():
            pytest.skip(
                "no uevents here: not root, /sys read-only, no netlink"
            )
        yield


def sockets() -> set[str]:
    """Return the sockets that this process has open."""
    sockets = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/self/fd/{number}"))
    return {name for name in sockets if name.startswith("socket:")}


Listening = Callable[..., threading.Semaphore]


@pytest.fixture
def listening() -> Iterator[Listening]:
    bells = []

    def listen(*subsystems: str) -> threading.Semaphore:
        rung = threading.Semaphore(0)
        bell = udev.UdevMonitor(rung.release, subsystems)
        assert bell.start()
        assert bell.start()  # one thread, also when asked twice
        bells.append(bell)
        return rung

    yield listen
    for bell in bells:
        bell.stop(PATIENCE_S)
    assert "accel-uevents" not in {t.name for t in threading.enumerate()}


def test_an_event_rings(listening: Listening) -> None:
    rung = listening("pci", "mem")
    for _ in range(3):
        change(NULL)
        assert rung.acquire(timeout=PATIENCE_S)
    assert not rung.acquire(timeout=SILENCE_S)


def test_other_subsystems_do_not_ring(listening: Listening) -> None:
    rung = listening("pci", "mdev")
    change(NULL, 100)
    assert not rung.acquire(timeout=SILENCE_S)


def test_a_pci_function_rings_by_default() -> None:
    functions = sorted(pathlib.Path("/sys/bus/pci/devices").glob("*"))
    if not functions:
        pytest.skip("this machine has no PCI bus")
    rang = threading.Event()
    bell = udev.UdevMonitor(rang.set)
    assert bell.start()
    change(str(functions[0] / "uevent"))
    assert rang.wait(PATIENCE_S)
    bell.stop(PATIENCE_S)


def test_a_burst_rings_a_few_times_only(listening: Listening) -> None:
    rung = listening("mem")
    change(ZERO, 5000)
    time.sleep(SILENCE_S)
    count = 0
    while rung.acquire(timeout=SILENCE_S):
        count += 1
    assert 1 <= count < 5000


def test_after_stop_nothing_rings_and_no_socket_is_open(
    listening: Listening,
) -> None:
    before = sockets()
    for _ in range(20):
        rung = threading.Semaphore(0)
        bell = udev.UdevMonitor(rung.release, ("mem",))
        assert bell.start()
        bell.stop(PATIENCE_S)
        bell.stop(PATIENCE_S)
        change(NULL)
        assert not rung.acquire(blocking=False)
    assert not sockets() - before


def test_without_pyudev_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(udev, "pyudev", None)
    bell = udev.UdevMonitor(lambda: None)
    assert not bell.start()
    bell.stop(PATIENCE_S)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "pyudev is not installed" in caplog.messages[0]
    assert "next interval" in caplog.messages[0]


# Rings twice. One that is deaf has to be told that it rings.
CHILD = """
import sys, threading
if sys.argv[1] == "green":
    import eventlet
    eventlet.monkey_patch()
    import select
    assert not hasattr(select, "poll")
import logging, os, time
from nova_accel.host.sysfs import udev

logging.basicConfig(stream=sys.stdout)
rung = []
deaf = sys.argv[2] == "deaf"
if deaf:
    udev.pyudev.Context()  # whatever it imports, root can read
    os.setuid(65534)

def ring():
    rung.append(time.monotonic())
    print("ring", flush=True)
    if deaf and len(rung) == 1:
        sys.stdin.readline()

bell = udev.UdevMonitor(ring, ("mem",))
print("start", bell.start(), flush=True)
def wait(count):
    end = time.monotonic() + 20
    while len(rung) < count and time.monotonic() < end:
        time.sleep(0.01)

wait(2)
if deaf:
    time.sleep(0.5)
    count = len(rung)
    print("quiet", flush=True)
    wait(count + 1)
bell.stop(5.0)
names = [thread.name for thread in threading.enumerate()]
print("stopped", "accel-uevents" not in names, len(rung), flush=True)
"""


def child(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-W", "ignore", "-c", CHILD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("world", ["native", "green"])
def test_it_rings_on_threads_of_both_kinds(world: str) -> None:
    if world == "green":
        pytest.importorskip("eventlet")
    with child(world, "hearing") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "start True\n"
        for _ in range(2):
            change(NULL)
            assert process.stdout.readline() == "ring\n"
        rest, _ = process.communicate(timeout=60)
    assert rest == "stopped True 2\n"


def test_a_buffer_that_runs_over_rings_and_goes_on() -> None:
    """Who is not root has a small buffer; here it runs over while deaf."""
    with child("native", "deaf") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "start True\n"
        change(NULL)
        assert process.stdout.readline() == "ring\n"
        change(NULL, 20_000)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        count = 0
        while (line := process.stdout.readline()) != "quiet\n":
            assert line == "ring\n"
            count += 1
        assert 1 <= count < 20
        change(NULL)
        assert process.stdout.readline() == "ring\n"
        rest, _ = process.communicate(timeout=60)
    # Late events of the 20,000 may ring once more.
    assert rest.splitlines()[-1].startswith("stopped True")


INSIDE = """
import os, sys, threading
os.makedirs("/run/udev")
open("/run/udev/control", "w").close()
from nova_accel.host.sysfs import udev
from tests.lab.fakehost.sysfs import uevents

rang = threading.Event()
bell = udev.UdevMonitor(rang.set)
assert bell.start()
kernel = uevents.Uevents(netlink=True)
kernel.send("add", "devices/virtual/tty/tty9", "tty")
assert not rang.wait(0.3)
kernel.send("add", "devices/virtual/mdev/1", "mdev")
assert rang.wait(10)
bell.stop(5.0)
"""


def test_where_udevd_runs_its_events_ring() -> None:
    """In a network and a /run of its own, as udevd would send them."""
    unshare = shutil.which("unshare")
    mount = shutil.which("mount")
    if not unshare or not mount:
        pytest.skip("no unshare (util-linux)")
    out = subprocess.run(  # noqa: S603
        [
            *(unshare, "--mount", "--net", "sh", "-c"),
            f'{mount} -t tmpfs none /run || exit 77; exec "$@"',
            *("sh", sys.executable, "-c", INSIDE),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    if out.returncode == 77 or "unshare failed" in out.stderr:
        pytest.skip("no namespaces here")
    assert out.returncode == 0, out.stderr
