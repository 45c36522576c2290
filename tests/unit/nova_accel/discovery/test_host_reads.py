# SPDX-License-Identifier: Apache-2.0
"""A change reads what it changes, not its card and not the host.

``tests.benchmark.host_reads`` prints the numbers.
"""

import contextlib
import pathlib
import uuid
from collections.abc import Iterator

import pytest

from nova_accel import errors
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.host.sysfs import host_reader
from tests.lab import fakehost
from tests.support.hosts import measured

pytestmark = pytest.mark.slow
VFS = 64
A40 = fakehost.NvidiaGpu(address=measured.CARD, model="A40", enabled_vfs=8)
T4 = fakehost.NvidiaGpu(address=measured.CARD, model="T4")
A100 = fakehost.NvidiaGpu(
    address=measured.CARD,
    model="A100",
    enabled_vfs=8,
    mig=True,
    instances=(("1g.5gb", 0), ("1g.5gb", 1), ("3g.20gb", 4)),
)


def host(
    root: pathlib.Path, technology: str, cards: int = 1
) -> contextlib.AbstractContextManager[measured.MeasuredHost]:
    return simulated_host(root, measured.describe(technology, cards, VFS))


@contextlib.contextmanager
def simulated_host(
    root: pathlib.Path, spec: fakehost.HostSpec
) -> Iterator[measured.MeasuredHost]:
    if reason := fakehost.missing():
        pytest.skip(reason)
    with fakehost.simulated_sysfs(spec, root) as kernel:
        yield measured.MeasuredHost(kernel)


@pytest.mark.parametrize("technology", measured.TECHNOLOGIES)
def test_a_spawn_and_a_uevent_read_one_vf(
    tmp_path: pathlib.Path, own_rights: None, technology: str
) -> None:
    with host(tmp_path, technology) as measured_host:
        assert measured_host.spawn().reads <= 20
        assert measured_host.handle_uevent().reads <= 100


@pytest.mark.parametrize("card", [A40, A100], ids=lambda card: card.model)
def test_a_card_read_by_slots_is_as_a_full_reading_has_it(
    tmp_path: pathlib.Path, own_rights: None, card: fakehost.NvidiaGpu
) -> None:
    spec = fakehost.HostSpec(cards=(card,))
    with simulated_host(tmp_path, spec) as by_slots:
        while by_slots.list_available():
            by_slots.spawn()
            assert by_slots.life.host.state == scan.read(
                host_reader.HostReader(tmp_path),
                plugin.load(),
                policy.DeviceRules(),
            )
        assert len(by_slots.card.partitions) > 1


@pytest.mark.parametrize("card", [T4, A40], ids=lambda card: card.model)
def test_a_slot_used_again_is_as_a_full_reading_has_it(
    tmp_path: pathlib.Path, own_rights: None, card: fakehost.NvidiaGpu
) -> None:
    """Each server has a profile of its own; an mdev's uuid comes again."""
    spec = fakehost.HostSpec(cards=(card,))
    with simulated_host(tmp_path, spec) as by_slots:
        empty = by_slots.card
        for number in range(4, 8):
            for _ in range(2):
                if not by_slots.list_available():
                    break
                by_slots.spawn(number)
                assert by_slots.life.host.state == scan.read(
                    host_reader.HostReader(tmp_path),
                    plugin.load(),
                    policy.DeviceRules(),
                )
            by_slots.release_all()
            assert by_slots.card == empty


def test_a_spawn_calls_one_driver_once(
    tmp_path: pathlib.Path, own_rights: None
) -> None:
    spec = fakehost.HostSpec(cards=(T4,))
    with simulated_host(tmp_path, spec) as measured_host:
        calls = measured_host.count_descriptions()
        assert measured_host.spawn().reads <= 20
        assert calls == {"nvidia_mdev": 1}
        measured_host.read_card()
        assert measured_host.read_card().reads > 0
        assert calls["nvidia_mdev"] <= 2, "no file has changed meanwhile"


def test_an_mdev_that_another_program_removed_frees_the_card(
    tmp_path: pathlib.Path, own_rights: None
) -> None:
    spec = fakehost.HostSpec(cards=(A40,))
    with simulated_host(tmp_path, spec) as by_slots:
        before = by_slots.card
        by_slots.spawn()
        by_slots.read_card()
        (mdev,) = by_slots.card.partitions
        mdevs = tmp_path / "sys/bus/mdev/devices"
        (mdevs / mdev.handle / "remove").write_text("1")
        by_slots.life.host.refresh_cards([measured.CARD], [mdev.parent])
        assert by_slots.card == before


def test_a_refused_spawn_reads_what_another_program_has_made(
    tmp_path: pathlib.Path, own_rights: None
) -> None:
    spec = fakehost.HostSpec(cards=(A40,))
    with simulated_host(tmp_path, spec) as by_slots:
        largest = max(by_slots.card.profiles, key=lambda p: p.size)
        vf, type_id = next(iter(largest.handles.items()))
        types = tmp_path / f"sys/bus/pci/devices/{vf}/mdev_supported_types"
        (types / type_id / "create").write_text(str(uuid.uuid4()))
        with pytest.raises(errors.ActionError):
            by_slots.spawn()
        (partition,) = by_slots.card.partitions
        assert partition.profile == largest.name


def test_a_card_among_many_is_read_as_if_it_was_alone(
    tmp_path: pathlib.Path, own_rights: None
) -> None:
    reads = []
    for cards in (1, 64):
        place = tmp_path / str(cards)
        with host(place, "vendor-vfio", cards) as among:
            reads.append((among.read_card().reads, among.spawn().reads))
            assert among.handle_uevent().reads <= 400
    alone, crowded = reads
    assert crowded == alone
