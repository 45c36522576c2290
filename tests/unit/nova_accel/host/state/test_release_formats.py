# SPDX-License-Identifier: Apache-2.0
"""State files of an earlier release are read, those of a newer one kept.

``release_0e38010`` and ``release_92ab40b`` have the files as these commits
wrote them, for the same objects.
"""

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import pytest

from nova_accel import model
from nova_accel.host.bitstreams import bitstream_cache
from nova_accel.host.state import claims_file, device_notes, notes
from placement_sync.daemon import heartbeat, status
from tests.support import strategies
from tests.support.fpga import bitstream_files, cached_images
from virt_hooks.operations import rebuild

RELEASE = pathlib.Path(__file__).with_name("release_0e38010")
EARLIER = RELEASE.with_name("release_92ab40b")
FILES = sorted(
    str(path.relative_to(RELEASE)) for path in RELEASE.rglob("*.json")
)
GPU, REGION, NVME = "0000:3b:00.0", "0000:5e:00.0/region-0", "0000:71:00.0"
SERVER = "aaaaaaaa-0000-4000-8000-000000000000"
WHEN = "2026-11-25T04:00:00+00:00"


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(RELEASE, tmp_path / "state")


def claim(number: int, **fields: object) -> model.Claim:
    values = {
        "consumer": "server-1",
        "provider": "provider-1",
        "device": GPU,
        "profile": "GRID T4-4Q",
        "slot": f"slot-{number}",
        "parent": GPU,
        "handle": f"handle of slot-{number}",
        "technology": "mdev",
        "state": model.ClaimState.MADE,
    }
    return model.Claim(**values | fields)  # type: ignore[arg-type]


def test_claims_are_read(place: pathlib.Path) -> None:
    planned = model.ClaimState.PLANNED
    assert claims_file.ClaimsFile(
        str(place)
    ).read() == claims_file.RecordedClaims(
        root=strategies.ROOT,
        claims=(
            claim(0),
            claim(1, state=planned, start=8),
            claim(2, state=planned, instance_start=0),
            claim(3, is_allocated=False),
            claim(4, is_allocated=False, unallocated={"VGPU": 1}),
        ),
        occupied=frozenset({NVME}),
        is_known=True,
    )


def test_faults_are_read(place: pathlib.Path) -> None:
    stored = device_notes.FaultNotes(str(place))
    assert stored.read() == {
        GPU: model.Fault(address=GPU, reason="NVML is lost", when=WHEN),
        REGION: model.Fault(
            address=REGION,
            reason="it failed",
            when=WHEN,
            function="d8424dc4-a4a3-c413-f89e-433683f9040b",
        ),
    }


def test_functions_to_scrub_are_read(place: pathlib.Path) -> None:
    stored = device_notes.FaultNotes(str(place))
    assert stored.read_scrubs() == (
        notes.ScrubInProgress(
            address=NVME,
            reason="it is being scrubbed",
            when=WHEN,
            device="0000:70:00.0",
        ),
    )
    assert stored.read_unreleased() == {
        NVME: notes.Unreleased(
            address=NVME,
            reason="a server has it",
            when=WHEN,
            device="0000:70:00.0",
            profile="8086:4940-VF",
            consumer="server-1",
        )
    }


def test_drains_are_read(place: pathlib.Path) -> None:
    assert device_notes.DrainNotes(str(place)).read() == {
        GPU: model.Drain(address=GPU, reason="a fan is loud", when=WHEN)
    }


def test_acknowledged_errors_are_read(place: pathlib.Path) -> None:
    assert device_notes.ErrorBaseline(str(place), "boot-1").read() == {GPU: 3}


def test_allocations_of_rebuilt_servers_are_read(place: pathlib.Path) -> None:
    assert rebuild.RebuildAllocations(str(place)).read() == {
        SERVER: {"a provider": {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}}
    }


def test_serial_numbers_are_read(place: pathlib.Path) -> None:
    assert device_notes.FaultNotes(str(place)).serials.read() == {
        NVME: notes.Assignment(
            address=NVME,
            reason="a server was given this device",
            when=WHEN,
            server="server-1",
            nvme="S4YNNE0M",
        )
    }


def test_metadata_of_bitstreams_are_read(place: pathlib.Path) -> None:
    cache = bitstream_cache.BitstreamCache(
        str(place / "bitstreams"), cached_images.LIMIT
    )
    content = cached_images.bits("a", 16)
    assert cache.facts(cached_images.A) == bitstream_files.facts(
        content, cached_images.A
    )


def test_the_status_of_passes_is_read(place: pathlib.Path) -> None:
    compute, sync = heartbeat.read(str(place))
    assert compute == status.Status(
        writer="nova-compute",
        version="0.1.dev0",
        pid=4711,
        root=strategies.ROOT,
        started=1_790_000_000.0,
        attempted=1_790_000_000.75,
        succeeded=1_790_000_001.0,
        seconds=0.25,
        interval_s=60.0,
        reads=2,
        writes=3,
        calls={"CreateTrait": 1},
        devices={
            "ok": 1, "faulted": 1, "drained": 2, "missing": 1, "unreadable": 1,
        },
        use={
            "CUSTOM_GPU_MEMORY_MB": status.ClassUsage(
                total=1600, reserved=1200, claimed=200
            ),
            "VGPU": status.ClassUsage(total=14, reserved=12, claimed=1),
        },
        problems=(
            model.Problem(where="0000:05:00.0", reason="EIO"),
            model.Problem(where="provider", reason="403"),
        ),
        undone=1,
    )  # fmt: skip
    assert (sync.error, sync.succeeded, sync.root) == ("503", None, None)


def read_all(place: pathlib.Path) -> dict[str, Any]:
    """Return the content of each file of a state directory."""
    stored = device_notes.FaultNotes(str(place))
    return {
        "claims": claims_file.ClaimsFile(str(place)).read(),
        "faults": stored.read(),
        "scrubs": stored.read_scrubs(),
        "unreleased": stored.read_unreleased(),
        "drains": device_notes.DrainNotes(str(place)).read(),
        "errors": device_notes.ErrorBaseline(str(place), "boot-1").read(),
        "rebuilt": rebuild.RebuildAllocations(str(place)).read(),
        "serials": device_notes.FaultNotes(str(place)).serials.read(),
        "bitstream": bitstream_cache.BitstreamCache(
            str(place / "bitstreams"), cached_images.LIMIT
        ).facts(cached_images.A),
        "status": heartbeat.read(str(place)),
    }


def test_files_of_both_releases_are_read_alike(place: pathlib.Path) -> None:
    """92ab40b had no notes on serials, and no missing allocations."""
    earlier = shutil.copytree(EARLIER, place / "earlier")
    later = read_all(place)
    later["claims"] = dataclasses.replace(
        later["claims"], claims=later["claims"].claims[:3]
    )
    assert read_all(earlier) == later | {"unreleased": {}, "serials": {}}


@pytest.mark.parametrize("name", FILES)
def test_unknown_fields_of_a_newer_release_are_ignored(
    place: pathlib.Path, name: str
) -> None:
    before = read_all(place)
    fields = json.loads((place / name).read_text())
    (place / name).write_text(json.dumps(fields | {"colour": "red"}))
    assert read_all(place) == before


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_an_unknown_version_is_an_error_and_stays(
    place: pathlib.Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields = json.loads((place / name).read_text())
    text = json.dumps(fields | {"format": 2})
    (place / name).write_text(text)
    messages = f"{read_all(place)} {caplog.text}"
    assert "its format is 2, and this nova-accel reads 1" in messages
    assert name in messages
    assert (place / name).read_text() == text
