# SPDX-License-Identifier: Apache-2.0
"""Snapshots keep the newest state of concurrent readings."""

import logging
import pathlib
import threading

import pytest

from nova_accel.config import policy
from nova_accel.discovery import change_detection, snapshot
from nova_accel.host.sysfs import fs
from tests.hosts import look

# Of the host "t4-mdev".
FIRST, SECOND = "0000:3b:00.0", "0000:af:00.0"


class Gate(fs.DiskSource):
    """The files of a directory; a reader of one of them has to wait."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.closed_for = ""
        self.waiting, self.opened = threading.Event(), threading.Event()

    def content(self, path: str) -> bytes:
        content = super().content(path)
        if self.closed_for and self.closed_for in path:
            self.closed_for = ""
            self.waiting.set()
            assert self.opened.wait(20)
        return content


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make("t4-mdev", tmp_path)


def snapshot_of(root: pathlib.Path) -> tuple[snapshot.Snapshot, Gate]:
    source = Gate(root)
    made = snapshot.Snapshot(
        change_detection.ChangeDetector(
            source, look.DRIVERS, policy.DeviceRules()
        )
    )
    made.refresh()
    return made, source


def fill(root: pathlib.Path, address: str) -> None:
    """Set every available_instances of a card to 0."""
    card = root / "sys/bus/pci/devices" / address
    for path in card.resolve().rglob("available_instances"):
        path.write_text("0\n")


def count_available(host_snapshot: snapshot.Snapshot, address: str) -> int:
    return sum(
        profile.available
        for profile in look.device(host_snapshot.state, address).profiles
    )


def test_a_refresh_of_one_card_leaves_the_others(root: pathlib.Path) -> None:
    host_snapshot, _ = snapshot_of(root)
    before = host_snapshot.state
    fill(root, FIRST)
    fill(root, SECOND)
    host_snapshot.refresh_cards([FIRST])
    assert not count_available(host_snapshot, FIRST)
    assert host_snapshot.state.device(SECOND) == before.device(SECOND)
    assert host_snapshot.refresh() == look.read(root)


def test_an_older_full_reading_replaces_no_newer_card(
    root: pathlib.Path,
) -> None:
    """A periodic pass reads a card; a claim fills it before the pass ends."""
    host_snapshot, gate = snapshot_of(root)
    assert count_available(host_snapshot, FIRST)
    gate.closed_for = SECOND
    reading = threading.Thread(target=host_snapshot.refresh)
    reading.start()
    assert gate.waiting.wait(20)
    fill(root, FIRST)
    host_snapshot.refresh_cards([FIRST])
    assert not count_available(host_snapshot, FIRST)
    gate.opened.set()
    reading.join()
    assert not count_available(host_snapshot, FIRST), (
        "the older reading replaced the newer one"
    )
    assert host_snapshot.refresh() == look.read(root)


def test_cards_are_read_concurrently(root: pathlib.Path) -> None:
    host_snapshot, gate = snapshot_of(root)
    gate.closed_for = FIRST
    slow = threading.Thread(
        target=host_snapshot.refresh_cards, args=([FIRST],)
    )
    slow.start()
    assert gate.waiting.wait(20)
    fill(root, SECOND)
    host_snapshot.refresh_cards([SECOND])
    assert not count_available(host_snapshot, SECOND), (
        "it waited for the other card"
    )
    fill(root, FIRST)
    gate.opened.set()
    slow.join()
    assert not count_available(host_snapshot, SECOND)


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_older_reading_of_a_card_replaces_no_newer_one(
    root: pathlib.Path, is_whole: bool
) -> None:
    """The cleanup reads a card; a claim fills and reads it meanwhile."""
    host_snapshot, gate = snapshot_of(root)
    gate.closed_for = f"{FIRST}/mdev_supported_types/nvidia-321"
    slow = threading.Thread(
        target=host_snapshot.refresh_cards, args=([FIRST],)
    )
    slow.start()
    assert gate.waiting.wait(20)
    fill(root, FIRST)
    if is_whole:
        host_snapshot.refresh()
    else:
        host_snapshot.refresh_cards([FIRST])
    assert not count_available(host_snapshot, FIRST)
    gate.opened.set()
    slow.join()
    assert not count_available(host_snapshot, FIRST), (
        "the older reading replaced the newer one"
    )
    assert host_snapshot.refresh() == look.read(root)


def test_nothing_is_absent_before_the_first_reading(
    root: pathlib.Path,
) -> None:
    source = change_detection.ChangeDetector(
        Gate(root), look.DRIVERS, policy.DeviceRules()
    )
    assert not snapshot.Snapshot(source).state.complete
    assert snapshot.Snapshot(source).refresh().complete


def test_an_unknown_card_causes_a_full_reading(root: pathlib.Path) -> None:
    host_snapshot, _ = snapshot_of(root)
    fill(root, FIRST)
    host_snapshot.refresh_cards(["0000:01:00.0"])
    assert not count_available(host_snapshot, FIRST)


def test_a_problem_is_logged_once(
    root: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    host_snapshot, _ = snapshot_of(root)
    card = (root / "sys/bus/pci/devices" / FIRST).resolve()
    broken = next(iter(sorted(card.rglob("available_instances"))))
    broken.write_text("many\n")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            host_snapshot.refresh_cards([FIRST])
            host_snapshot.refresh()
            host_snapshot.refresh_changed()
    assert len([r for r in caplog.records if "many" in r.message]) == 1
