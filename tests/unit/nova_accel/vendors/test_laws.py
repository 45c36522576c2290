# SPDX-License-Identifier: Apache-2.0
"""Unreadable files lose no card and end no driver, on any host."""

import contextlib
import functools
import json
import os
import pathlib
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import model
from tests.hosts import build, look
from tests.support import examples

HOSTS = sorted(path.stem for path in build.HERE.glob("*.json"))
# A file that is missing, or has another text, describes another card.
FAULTS = sorted(build.FAULTS.keys() - {"missing"})


# Lines of device_spec: none, and one for each device.
RULES = ((), (json.dumps({"address": "*:*", "use": "passthrough"}),))


@functools.cache
def read_cards(name: str, rules: tuple[str, ...]) -> frozenset[str]:
    """Return the addresses of a host's cards."""
    with tempfile.TemporaryDirectory() as directory:
        root = look.make(name, pathlib.Path(directory))
        return list_cards(look.read(root, rules))


def list_cards(state: model.HostState) -> frozenset[str]:
    return frozenset(
        device.address.partition("/")[0] for device in state.devices
    )


def break_files(root: pathlib.Path, faults: list[tuple[float, str]]) -> None:
    """Break files and links of devices, each named by its share of all."""
    places = sorted(
        os.path.relpath(os.path.join(base, name), root / "sys")
        for base, below, files in os.walk(root / "sys/devices")
        for name in (*below, *files)
        # A link to a driver that is redirected names another driver.
        if name != "driver" and base.count("/") > str(root).count("/") + 3
    )
    broken: list[str] = []
    for share, fault in faults if places else ():
        place = places[int(share * len(places))]
        # Nothing is left below a broken path.
        if not any(place.startswith(f"{path}/") for path in broken):
            broken.append(place)
            with contextlib.suppress(OSError, RuntimeError):
                build.break_path(root, place, {"fault": fault})


@settings(max_examples=examples.examples(100), deadline=None)
@given(
    st.sampled_from(HOSTS),
    st.sampled_from(RULES),
    st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True),
            st.sampled_from(FAULTS),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_unreadable_files_lose_no_card(
    name: str, rules: tuple[str, ...], faults: list[tuple[float, str]]
) -> None:
    """Unknown is not absent: each card is described, or has a reason."""
    with tempfile.TemporaryDirectory() as directory:
        root = look.make(name, pathlib.Path(directory))
        break_files(root, faults)
        state = look.read(root, rules)
    assert not [p for p in state.problems if p.where.startswith("driver ")]
    reported = {p.where.partition("/")[0] for p in state.problems}
    cards = read_cards(name, rules)
    assert cards <= list_cards(state) | state.unknown | reported
    for device in state.devices:
        if device.region is not None and device.counters:
            # Each offered slot is a readable function.
            (slot,) = device.slots
            assert slot not in state.unknown
            assert device.profiles[0].available == 1
