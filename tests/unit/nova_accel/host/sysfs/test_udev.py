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
# Devices of each kernel, in a subsystem without accelerators.
NULL = "/sys/class/mem/null/uevent"
ZERO = "/sys/class/mem/zero/uevent"
TIMEOUT_S = 10.0
# No callback within this time means that there is none.
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
    called = threading.Event()
    monitor = udev.UdevMonitor(called.set, ("mem",))
    if not monitor.start():
        return False
    try:
        change(NULL)
        return called.wait(2)
    except OSError:
        return False
    finally:
        monitor.stop(TIMEOUT_S)


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
    monitors = []

    def listen(*subsystems: str) -> threading.Semaphore:
        callbacks = threading.Semaphore(0)
        monitor = udev.UdevMonitor(callbacks.release, subsystems)
        assert monitor.start()
        assert monitor.start()  # a second start creates no second thread
        monitors.append(monitor)
        return callbacks

    yield listen
    for monitor in monitors:
        monitor.stop(TIMEOUT_S)
    assert "accel-uevents" not in {t.name for t in threading.enumerate()}


def test_an_event_calls_back(listening: Listening) -> None:
    callbacks = listening("pci", "mem")
    for _ in range(3):
        change(NULL)
        assert callbacks.acquire(timeout=TIMEOUT_S)
    assert not callbacks.acquire(timeout=SILENCE_S)


def test_other_subsystems_do_not_call_back(listening: Listening) -> None:
    callbacks = listening("pci", "mdev")
    change(NULL, 100)
    assert not callbacks.acquire(timeout=SILENCE_S)


def test_a_pci_function_calls_back_by_default() -> None:
    functions = sorted(pathlib.Path("/sys/bus/pci/devices").glob("*"))
    if not functions:
        pytest.skip("this machine has no PCI bus")
    called = threading.Event()
    monitor = udev.UdevMonitor(called.set)
    assert monitor.start()
    change(str(functions[0] / "uevent"))
    assert called.wait(TIMEOUT_S)
    monitor.stop(TIMEOUT_S)


def test_a_burst_is_debounced(listening: Listening) -> None:
    callbacks = listening("mem")
    change(ZERO, 5000)
    time.sleep(SILENCE_S)
    count = 0
    while callbacks.acquire(timeout=SILENCE_S):
        count += 1
    assert 1 <= count < 5000


def test_after_stop_there_is_no_callback_and_no_socket(
    listening: Listening,
) -> None:
    before = sockets()
    for _ in range(20):
        callbacks = threading.Semaphore(0)
        monitor = udev.UdevMonitor(callbacks.release, ("mem",))
        assert monitor.start()
        monitor.stop(TIMEOUT_S)
        monitor.stop(TIMEOUT_S)
        change(NULL)
        assert not callbacks.acquire(blocking=False)
    assert not sockets() - before


def test_without_pyudev_a_warning_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(udev, "pyudev", None)
    monitor = udev.UdevMonitor(lambda: None)
    assert not monitor.start()
    monitor.stop(TIMEOUT_S)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "install nova-accel[compute]" in caplog.messages[0]
    assert "next interval" in caplog.messages[0]


# Waits for two callbacks. If blocking, the first one blocks on standard input.
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
callbacks = []
is_blocking = sys.argv[2] == "blocking"
if is_blocking:
    udev.pyudev.Context()  # root can read all of its imports
    os.setuid(65534)

def call_back():
    callbacks.append(time.monotonic())
    print("event", flush=True)
    if is_blocking and len(callbacks) == 1:
        sys.stdin.readline()

monitor = udev.UdevMonitor(call_back, ("mem",))
print("start", monitor.start(), flush=True)
def wait(count):
    end = time.monotonic() + 20
    while len(callbacks) < count and time.monotonic() < end:
        time.sleep(0.01)

wait(2)
if is_blocking:
    time.sleep(0.5)
    count = len(callbacks)
    print("quiet", flush=True)
    wait(count + 1)
monitor.stop(5.0)
names = [thread.name for thread in threading.enumerate()]
print("stopped", "accel-uevents" not in names, len(callbacks), flush=True)
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


def read_rest(process: "subprocess.Popen[str]") -> str:
    """Return the output until the child's end, with lines read ahead.

    ``communicate`` would lose these: it reads the descriptor itself.
    """
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    return process.stdout.read()


@pytest.mark.slow
@pytest.mark.parametrize("world", ["native", "green"])
def test_callbacks_work_on_native_and_green_threads(world: str) -> None:
    if world == "green":
        pytest.importorskip("eventlet")
    with child(world, "ready") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "start True\n"
        for _ in range(2):
            change(NULL)
            assert process.stdout.readline() == "event\n"
        rest = read_rest(process)
    assert rest == "stopped True 2\n"


def test_a_buffer_overrun_calls_back_and_goes_on() -> None:
    """A user's buffer is small: it overruns while the callback blocks."""
    with child("native", "blocking") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "start True\n"
        change(NULL)
        assert process.stdout.readline() == "event\n"
        change(NULL, 20_000)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        count = 0
        while (line := process.stdout.readline()) != "quiet\n":
            assert line == "event\n"
            count += 1
        assert 1 <= count < 20
        change(NULL)
        assert process.stdout.readline() == "event\n"
        rest = read_rest(process)
    # Late events of the 20,000 may call back once more.
    assert rest.splitlines()[-1].startswith("stopped True")


INSIDE = """
import os, sys, threading
os.makedirs("/run/udev")
open("/run/udev/control", "w").close()
from nova_accel.host.sysfs import udev
from tests.lab.fakehost.sysfs import uevents

called = threading.Event()
monitor = udev.UdevMonitor(called.set)
assert monitor.start()
kernel = uevents.Uevents(netlink=True)
kernel.send("add", "devices/virtual/tty/tty9", "tty")
assert not called.wait(0.3)
kernel.send("add", "devices/virtual/mdev/1", "mdev")
assert called.wait(10)
monitor.stop(5.0)
"""


def test_events_of_udevd_call_back() -> None:
    """The events are sent as by udevd, in separate namespaces."""
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
