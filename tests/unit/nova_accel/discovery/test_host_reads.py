# SPDX-License-Identifier: Apache-2.0
"""A change reads what it changes, not its card and not the host.

``tests.benchmark.host_reads`` prints the numbers.
"""

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.lab import fakehost
from tests.support.hosts import measured

VFS = 64


@contextlib.contextmanager
def host(
    root: pathlib.Path, technology: str, cards: int = 1
) -> Iterator[measured.MeasuredHost]:
    if reason := fakehost.missing():
        pytest.skip(reason)
    spec = measured.describe(technology, cards, VFS)
    with fakehost.simulated_sysfs(spec, root) as kernel:
        yield measured.MeasuredHost(kernel)


@pytest.mark.parametrize("technology", measured.TECHNOLOGIES)
def test_a_spawn_and_a_uevent_read_one_vf(
    tmp_path: pathlib.Path, own_rights: None, technology: str
) -> None:
    with host(tmp_path, technology) as measured_host:
        assert measured_host.spawn().reads <= 20
        assert measured_host.handle_uevent().reads <= 100


def test_a_card_among_many_is_read_as_if_it_was_alone(
    tmp_path: pathlib.Path, own_rights: None
) -> None:
    reads = []
    for cards in (1, 64):
        place = tmp_path / str(cards)
        with host(place, "vendor-vfio", cards) as among:
            reads.append((among.read_card().reads, among.spawn().reads))
            assert among.handle_uevent().reads <= 300
    alone, crowded = reads
    assert crowded == alone
