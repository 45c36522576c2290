# SPDX-License-Identifier: Apache-2.0
"""Proves that kernel numbers and read errors lose no Intel FPGA card."""

import contextlib
import json
import os
import pathlib
import random
import re
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import model
from tests.hosts import build, look
from tests.support import examples

HOSTS = ("dfl-n6000", "dfl-older", "dfl-pac")
# Numbers that the kernel assigns: only the order of regions has a meaning.
_PART = re.compile(r"(dfl-fme-region\.)(\d+)")
_FREE = re.compile(
    r"(/region|dfl-fme\.|dfl-port\.|intel-fpga-(?:dev|fme|port)\.)(\d+)"
)


def renumbered(
    name: str, free: list[int], parts: list[int]
) -> build.Description:
    """Return a host as the kernel would show it after another boot."""
    text = (build.HERE / f"{name}.json").read_text()
    text = _FREE.sub(lambda m: f"{m[1]}{free[int(m[2])]}", text)
    text = _PART.sub(lambda m: f"{m[1]}{parts[int(m[2])]}", text)
    description: build.Description = json.loads(text)
    return description


def read(
    description: build.Description, faults: list[tuple[float, str]]
) -> tuple[model.HostState, set[str]]:
    """Return a host with faults, and its cards without them."""
    with tempfile.TemporaryDirectory() as directory:
        root = build.build(description, pathlib.Path(directory))
        cards = {
            device.address
            for device in look.read(root).devices
            if device.technology == "fpga"
            and (device.region is None or device.region.number == 0)
        }
        places = sorted(
            os.path.relpath(os.path.join(base, name), root / "sys")
            for base, below, files in os.walk(root / "sys/devices")
            for name in (*below, *files)
            # A redirected link would name another driver.
            if name != "driver" and base.count("/") > str(root).count("/") + 3
        )
        broken: list[str] = []
        for share, fault in faults:
            place = places[int(share * len(places))]
            # Nothing is left below a broken path.
            if any(place.startswith(f"{path}/") for path in broken):
                continue
            # A card without the directory of a region has no such region.
            if fault == "missing" and _PART.fullmatch(
                pathlib.Path(place).name
            ):
                continue
            broken.append(place)
            with contextlib.suppress(OSError, RuntimeError):
                build.break_path(root, place, {"fault": fault})
        return look.read(root), cards


@settings(max_examples=examples.examples(15), deadline=None)
@given(st.sampled_from(HOSTS), st.randoms(use_true_random=False))
def test_kernel_numbers_do_not_change_devices(
    name: str, chance: random.Random
) -> None:
    free = chance.sample(range(10_000), 1000)
    parts = sorted(chance.sample(range(10_000), 1000))
    usual, _ = read(build.load(name), [])
    other, _ = read(renumbered(name, free, parts), [])
    assert other.devices == usual.devices


@settings(max_examples=examples.examples(40), deadline=None)
@given(
    st.sampled_from(HOSTS),
    st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True),
            st.sampled_from(sorted(build.FAULTS)),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_read_errors_lose_no_card(
    name: str, faults: list[tuple[float, str]]
) -> None:
    state, cards = read(build.load(name), faults)
    assert not [p for p in state.problems if p.where.startswith("driver ")]
    described = {device.address for device in state.devices}
    lost = cards - described
    assert {address.partition("/")[0] for address in lost} <= state.unknown
    for device in state.devices:
        if device.region is None or not device.counters:
            continue
        # Each offered slot is a readable function.
        (slot,) = device.slots
        assert slot not in state.unknown
        assert device.profiles[0].available == 1
