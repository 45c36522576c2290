# SPDX-License-Identifier: Apache-2.0
"""GPU faults reported by NVML are noted, once each."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from nova_accel.config.policy import DeviceRules
from nova_accel.discovery import change_detection, note_stores
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import (
    gpu_state,
    nvml_library,
    xid_events,
    xid_listener,
)
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import error_counters, fs, host_reader
from tests.hosts import look
from tests.support.hosts import ailing

STANDINS = pathlib.Path(__file__).parents[4] / "lab/standins/nvml"
GPU, DEAF = "0000:41:00.0", "0000:42:00.0"
SCRIPT = """
import json
from nova_accel.host.nvml import gpu_reader, gpu_state
print(json.dumps(gpu_state.to_plain(gpu_reader.read_gpus())))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a directory with an NVML whose GPUs can fail."""
    pytest.importorskip("pynvml")
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    place = tmp_path_factory.mktemp("library")
    subprocess.run(  # noqa: S603 - our own words
        [
            *("gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o"),
            *(place / "libnvidia-ml.so.1", STANDINS / "illnvml.c"),
        ],
        check=True,
    )
    return place


@pytest.fixture
def ill(
    library: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> pathlib.Path:
    """Return the directory whose files set the state of the GPUs."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("ILLNVML", str(tmp_path))
    return tmp_path


def read() -> nvml_gpus.NvmlGpus:
    """Read in a process that finds the library."""
    completed = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", SCRIPT],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return gpu_state.from_plain(json.loads(completed.stdout))


def test_a_healthy_gpu_has_no_fault(ill: pathlib.Path) -> None:
    gpus = read()
    assert gpus.keys() == {GPU, DEAF}
    assert gpus.lost == ()
    assert {(gpu.fault, gpu.recovery) for gpu in gpus.values()} == {("", None)}
    (ill / "recovery").write_text("0")
    assert read()[GPU].recovery == 0


def test_the_recommended_recovery_is_read(ill: pathlib.Path) -> None:
    (ill / "recovery").write_text("1")
    gpus = read()
    assert gpus[GPU].recovery == 1
    assert gpus[DEAF].recovery is None


def test_a_gpu_that_requires_a_reset_has_a_fault(ill: pathlib.Path) -> None:
    (ill / "reset").touch()
    gpus = read()
    assert "GPU requires" in gpus[GPU].fault
    assert not gpus[DEAF].fault


def test_a_lost_gpu_has_no_address(ill: pathlib.Path) -> None:
    (ill / "lost").touch()
    gpus = read()
    assert gpus.keys() == {DEAF}
    (reason,) = gpus.lost
    assert "GPU is lost" in reason


def test_archives_of_older_releases_have_no_faults() -> None:
    plain = gpu_state.to_plain(
        nvml_gpus.NvmlGpus({GPU: nvml_gpus.NvmlGpu(address=GPU)})
    )
    del plain["lost"], plain["gpus"][0]["fault"], plain["gpus"][0]["recovery"]
    gpus = gpu_state.from_plain(plain)
    assert gpus == {GPU: nvml_gpus.NvmlGpu(address=GPU)}
    assert gpus.lost == ()


# -- faults of cards ----------------------------------------------------------


def judge(root: pathlib.Path, gpus: nvml_gpus.NvmlGpus) -> dict[str, str]:
    reader = host_reader.HostReader(root, gpus=gpus)
    faults = error_counters.find_faults(reader, look.read(root).devices)
    return {address: fault.reason for address, fault in faults.items()}


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make(ailing.HOST, tmp_path / "host")


CARDS = ("0000:3d:00.0", "0000:3e:00.0", "0000:d8:00.0")


def facts(*addresses: str) -> dict[str, nvml_gpus.NvmlGpu]:
    return {
        address: nvml_gpus.NvmlGpu(address=address) for address in addresses
    }


def test_faults_of_nvml_are_of_the_named_gpu(root: pathlib.Path) -> None:
    gpus = facts(*CARDS)
    gpus[CARDS[0]] = nvml_gpus.NvmlGpu(
        address=CARDS[0], fault="NVML: it is lost"
    )
    gpus[CARDS[1]] = nvml_gpus.NvmlGpu(address=CARDS[1], recovery=4)
    faults = judge(root, nvml_gpus.NvmlGpus(gpus))
    assert faults.keys() == set(CARDS[:2])
    assert faults[CARDS[0]] == "NVML: it is lost"
    assert "reset" in faults[CARDS[1]]


def test_the_lost_gpu_is_the_missing_one(root: pathlib.Path) -> None:
    gpus = nvml_gpus.NvmlGpus(facts(*CARDS[1:]), lost=("NVML: GPU is lost",))
    assert judge(root, gpus) == {CARDS[0]: "NVML: GPU is lost"}


def test_a_lost_gpu_of_several_missing_ones_is_unknown(
    root: pathlib.Path,
) -> None:
    gpus = nvml_gpus.NvmlGpus(facts(*CARDS[2:]), lost=("NVML: GPU is lost",))
    assert judge(root, gpus) == {}
    assert judge(root, nvml_gpus.NvmlGpus({}, reason="no driver")) == {}


# -- listening ----------------------------------------------------------------


@pytest.fixture
def watcher(ill: pathlib.Path) -> Iterator[xid_events.XidWatcher]:
    xid_watcher = xid_events.XidWatcher()
    yield xid_watcher
    xid_watcher.watch(())


def wait_until(is_met: Callable[[], bool]) -> None:
    """Wait wait_until a condition is true."""
    for _ in range(3000):
        if is_met():
            return
        time.sleep(0.01)
    pytest.fail("the condition is false")


def drain_xids(watcher: xid_events.XidWatcher, count: int) -> list[int]:
    """Return this number of Xids, or fail."""
    errors: list[int] = []

    def has_enough() -> bool:
        errors.extend(xid.number for xid in watcher.drain())
        return len(errors) >= count

    wait_until(has_enough)
    return errors


def test_each_xid_is_returned_once(
    watcher: xid_events.XidWatcher, ill: pathlib.Path
) -> None:
    watcher.watch([GPU])
    assert watcher.drain() == ()
    (ill / "xids").write_text("43\n79\n")
    assert drain_xids(watcher, 2) == [43, 79]
    watcher.watch([GPU])
    assert watcher.drain() == ()
    with (ill / "xids").open("a") as file:
        file.write("119\n")
    assert drain_xids(watcher, 1) == [119]


def children() -> dict[int, bool]:
    """Return this process's children: whether each is a running listener.

    Zombies have no command line, nor have those that the kernel is about
    to start, so they are no running listeners.
    """
    processes = {}
    for place in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = place.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                words = (place.parent / "cmdline").read_bytes().split(b"\0")
                processes[int(place.parent.name)] = (
                    xid_listener.__name__.encode() in words
                )
    return processes


@pytest.fixture
def listeners() -> Callable[[], set[int]]:
    """Return a function that lists the listeners started by the test.

    Children of earlier tests may end at any time, and do not count.
    """
    before = children()
    return lambda: {
        number
        for number, is_listener in children().items()
        if is_listener and number not in before
    }


def test_an_unused_gpu_has_no_listener(
    watcher: xid_events.XidWatcher, listeners: Callable[[], set[int]]
) -> None:
    watcher.watch([GPU])
    wait_until(lambda: len(listeners()) == 1)
    watcher.watch([GPU])
    assert len(listeners()) == 1
    watcher.watch(())
    wait_until(lambda: not listeners())
    assert watcher.drain() == ()


def test_a_gpu_without_xid_events_has_no_listener(
    watcher: xid_events.XidWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()

    def is_over() -> bool:
        # It also reaps a listener that has ended.
        watcher.watch([DEAF])
        return not children().keys() - before.keys()

    wait_until(is_over)
    assert is_over()
    monkeypatch.setattr(xid_events, "RETRY_S", 0)
    before = children()
    watcher.watch([DEAF])
    # The listener may be a zombie already.
    assert children().keys() - before.keys()


def test_a_listener_ends_with_its_gpu(ill: pathlib.Path) -> None:
    (ill / "gone").touch()
    words = [sys.executable, "-m", xid_listener.__name__, GPU]
    ended = subprocess.run(  # noqa: S603 - our own words
        [*words, str(os.getpid())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == xid_listener.LOST
    assert "GPU is lost" in ended.stderr


def test_a_listener_ends_with_its_parent(ill: pathlib.Path) -> None:
    start = (
        "import os, subprocess, sys; print(subprocess.Popen([sys.executable,"
        f" '-m', '{xid_listener.__name__}', '{GPU}', str(os.getpid())],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    )
    completed = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", start],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    place = pathlib.Path(f"/proc/{int(completed.stdout)}/cmdline")
    wait_until(lambda: not place.exists() or not place.read_bytes())


def test_without_nvml_there_is_no_listener(
    monkeypatch: pytest.MonkeyPatch, listeners: Callable[[], set[int]]
) -> None:
    monkeypatch.setattr(nvml_library, "pynvml", None)
    watcher = xid_events.XidWatcher()
    watcher.watch([GPU])
    assert watcher.drain() == ()
    assert not listeners()
    assert xid_listener.main([GPU, "1"]) == xid_listener.DEAF


# -- faults -------------------------------------------------------------------


def xid(number: int, address: str = GPU) -> xid_events.Xid:
    return xid_events.Xid(address=address, number=number)


def test_a_failed_gpu_is_faulted_until_it_is_healed(
    tmp_path: pathlib.Path,
) -> None:
    faulted = device_notes.FaultNotes(str(tmp_path))
    xid_events.set_aside([xid(43), xid(79, DEAF)], faulted)
    assert faulted.read().keys() == {DEAF}
    xid_events.set_aside([xid(119, DEAF), xid(79, DEAF)], faulted)
    later = device_notes.FaultNotes(str(tmp_path))
    reason = later.read()[DEAF].reason
    assert reason.count("Xid 79: ") == reason.count("Xid 119: ") == 1
    later.heal([DEAF])
    xid_events.set_aside([xid(79, DEAF)], faulted)
    assert later.read()[DEAF].reason.startswith("Xid 79")


def test_a_fault_that_cant_be_written_counts(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "faulted").write_text("no directory")
    faulted = device_notes.FaultNotes(str(tmp_path))
    xid_events.set_aside([xid(79)], faulted)
    (tmp_path / "faulted").unlink()
    assert faulted.read().keys() == {GPU}


def test_a_pass_detects_an_xid_without_a_uevent(
    ill: pathlib.Path, root: pathlib.Path
) -> None:
    card = CARDS[0]
    (root / "sys/kernel").mkdir(exist_ok=True)
    (root / "sys/kernel/uevent_seqnum").write_text("1\n")
    faulted = device_notes.FaultNotes(str(ill / "state"))
    errors: list[xid_events.Xid] = []

    def read_gpus() -> nvml_gpus.NvmlGpus:
        xid_events.set_aside(errors, faulted)
        return nvml_gpus.NvmlGpus(facts(*CARDS))

    detector = change_detection.ChangeDetector(
        fs.DiskSource(root),
        look.DRIVERS,
        DeviceRules(),
        read_gpus,
        note_stores.NoteStores(faulted=faulted),
    )
    assert not look.device(detector.read(), card).fault
    assert detector.read_changed() is None
    errors.append(xid(79, card))
    state = detector.read_changed()
    assert state is not None
    assert "fallen off its bus" in look.device(state, card).fault
    assert f"`nova-accel heal {card}`" in look.reasons(state, card)
    errors.clear()
    faulted.heal([card])
    state = detector.read_changed()
    assert state is not None
    assert not look.device(state, card).fault


def test_each_reading_starts_listeners_of_gpus_in_use(
    ill: pathlib.Path, listeners: Callable[[], set[int]]
) -> None:
    faulted = device_notes.FaultNotes(str(ill / "state"))
    in_use = {GPU}
    read_gpus = xid_events.listening(
        lambda: nvml_gpus.NvmlGpus({}), lambda: in_use, faulted
    )
    assert read_gpus() == {}
    wait_until(lambda: len(listeners()) == 1)
    (ill / "xids").write_text("79\n")

    def is_noted() -> bool:
        read_gpus()
        return GPU in faulted.read()

    wait_until(is_noted)
    in_use.clear()
    read_gpus()
    wait_until(lambda: not listeners())
