# SPDX-License-Identifier: Apache-2.0
"""Proves that NVIDIA cards are described for any state of their VFs."""

import json
import pathlib
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.geometry import device_capacity
from nova_accel.host import nvml_gpus
from tests.hosts import build, look
from tests.support import examples

CARD = "0000:3e:00.0"
PLACES = [f"0000:3e:{n >> 3:02x}.{n & 7}" for n in range(4, 11)]
TYPES = {1147: "1Q", 1148: "2Q", 1152: "8Q", 1155: "24Q", 9: "7Z", 8: "1-5C"}
NUMBERS = sorted(TYPES)

# The content, or the fault, of the two files of a VF.
CURRENTS = st.one_of(
    st.sampled_from(["0\n", "0", "1147\n", "1155\n", "77\n", "no\n", ""]),
    st.sampled_from([{"fault": "EIO"}, {"fault": "missing"}]),
)
LISTS = st.one_of(
    st.lists(st.sampled_from(NUMBERS), unique=True).map(
        lambda numbers: (
            "ID    : vGPU Name\n"
            + "".join(f"{n:<5} : NVIDIA L40S-{TYPES[n]}\n" for n in numbers)
        )
    ),
    st.sampled_from(["", "junk\n", {"fault": "ENXIO"}, {"fault": "missing"}]),
)
VFS = st.lists(st.tuples(CURRENTS, LISTS), min_size=7, max_size=7)
MODES = st.sampled_from([None, True, False])
NVML = st.builds(
    nvml_gpus.NvmlGpu, address=st.just(CARD), is_mig=MODES, is_mixed=MODES
)


def described(vfs: list[tuple[Any, Any]]) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(
        json.dumps(build.load("l40s-vendor-vfio"))
    )
    description["faults"] = [
        {"path": f"bus/pci/devices/{place}/nvidia/{name}", "is": content}
        for place, files in zip(PLACES, vfs, strict=True)
        for name, content in zip(
            ("current_vgpu_type", "creatable_vgpu_types"), files, strict=True
        )
    ]
    return description


@settings(max_examples=examples.examples(60), deadline=None)
@given(vfs=VFS, nvml=NVML)
def test_a_card_is_described_for_any_state_of_its_vfs(
    vfs: list[tuple[Any, Any]], nvml: nvml_gpus.NvmlGpu
) -> None:
    with tempfile.TemporaryDirectory() as top:
        root = build.build(described(vfs), pathlib.Path(top))
        state = look.read(root, gpus=[nvml])
    assert not [p for p in state.problems if p.where.startswith("driver")]
    # Other cards are not affected.
    assert look.device(state, "0000:3d:00.0").partitions
    card = state.device(CARD)
    absent = [current == {"fault": "missing"} for current, _ in vfs]
    assert (card is None) == all(absent)
    if card is not None:
        check(card, vfs)


def check(card: model.Device, vfs: list[tuple[Any, Any]]) -> None:
    texts = dict(zip(PLACES, (current for current, _ in vfs), strict=True))
    present = {p for p, text in texts.items() if text != {"fault": "missing"}}
    assert set(card.slots) == present
    # A VF counts as used unless its file says that it is free.
    assert {p.parent for p in card.partitions} == {
        p for p in present if texts[p] not in ("0\n", "0")
    }
    free = len(present) - len(card.partitions)
    existing = [p.profile for p in card.partitions]
    for profile in card.profiles:
        listing = sum(
            texts[place] in ("0\n", "0")
            and f"NVIDIA {profile.name}\n" in str(listed)
            for place, (_, listed) in zip(PLACES, vfs, strict=True)
        )
        assert 0 <= profile.available <= min(free, listing)
        assert set(profile.handles) <= present
        assert set(profile.charges) <= set(card.counters)
    # The counters cover existing vGPUs and one more.
    max_available = max((p.available for p in card.profiles), default=0)
    assert card.counters["VGPU"] >= len(existing) + min(1, max_available)
    free_counters = device_capacity.free_counters(card)
    for profile in card.profiles:
        if profile.available:
            assert all(
                free_counters[c] >= n for c, n in profile.charges.items()
            )
