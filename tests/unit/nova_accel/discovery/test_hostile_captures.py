# SPDX-License-Identifier: Apache-2.0
"""Captures that attack the support staff who open them.

``inspect`` runs within its usual time and memory, whatever numbers, names
and texts a capture has.
"""

import contextlib
import io
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping

import pytest

from nova_accel import errors
from nova_accel.config import policy
from nova_accel.discovery import capture, scan
from nova_accel.discovery.capture import (
    Record,
    RecordedFiles,
    list_records,
)
from nova_accel.doctor.areas import host_versions
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import host_reader
from tests.hosts import look
from tests.support import examples
from tests.unit.nova_accel.discovery import test_capture

# CPU seconds; a reading takes 0.02.
LIMIT_S = 2.0
# Of the whole command: the attack took half a minute for each type. Its texts
# become some kilobytes of archive.
COMMAND_S = 100.0
NUMBER = re.compile(r"[0-9]+")
Records = Mapping[str, Record]


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise TimeoutError in a block that takes too much CPU time."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def read_records(root: pathlib.Path) -> Records:
    host = host_reader.HostReader(root)
    scan.read(host, look.DRIVERS, policy.DeviceRules())
    return list_records(host.files)


def read(records: Records, gpus: nvml_gpus.NvmlGpus | None = None) -> None:
    """Read a host within the limit."""
    source = RecordedFiles(records)
    with limited():
        host = host_reader.HostReader(source=source, gpus=gpus or {})
        scan.read(host, look.DRIVERS, policy.DeviceRules())


def list_numbered(records: Records) -> dict[str, list[str]]:
    """Return the paths of files with numbers, by name."""
    paths: dict[str, list[str]] = {}
    for path, record in records.items():
        is_text = isinstance(record, str) and type(record) is str
        if is_text and NUMBER.search(str(record)):
            paths.setdefault(path.rpartition("/")[2], []).append(path)
    return paths


@pytest.mark.parametrize("name", examples.share(look.NAMES))
def test_no_number_in_a_file_is_a_count_of_anything(
    tmp_path: pathlib.Path, name: str
) -> None:
    records = read_records(look.make(name, tmp_path))
    for paths in list_numbered(records).values():
        # The last one is longer than what int() takes.
        for number in ("65535", "9" * 18, "9" * 5000):
            changed = {p: NUMBER.sub(number, str(records[p])) for p in paths}
            read({**records, **changed})


@pytest.mark.parametrize("number", [1 << 32, 10**15])
def test_a_limit_of_nvml_is_no_number_of_slots(
    tmp_path: pathlib.Path, number: int
) -> None:
    records = read_records(look.make("p100-mdev", tmp_path))
    address = next(
        path.split("/")[-2]
        for path, record in records.items()
        if path.endswith("/vendor") and str(record).strip() == "0x10de"
    )
    vgpu_types = tuple(
        nvml_gpus.NvmlVgpuType(
            name=name,
            type_id="1",
            framebuffer_mb=1024,
            max_instances=number,
            instance="9" * 5000 + "g.5gb",
            per_instance=1,
        )
        for name in ("P100-1Q", "P100X-1Q", "P100-2Q")
    )
    gpu = nvml_gpus.NvmlGpu(address=address, types=vgpu_types)
    # Else the kernel's own limit counts.
    undescribed = {
        p: r for p, r in records.items() if not p.endswith("description")
    }
    read(undescribed, nvml_gpus.NvmlGpus({address: gpu}))


def test_a_list_of_numa_nodes_is_not_written_out() -> None:
    text = ",".join(f"{n % 10}-9999" for n in range(9000))
    with limited():
        ranges = host_versions._parse_ranges(text)
    assert 7777 in ranges[0]


@pytest.mark.parametrize(
    "member",
    [
        ("sys/bus/pci/devices/0000:01:00.0/virtfn" + "9" * 5000, ""),
        ("sys/bus/pci/devices/0000:01:00.0/iommu_group link", "9" * 5000),
    ],
    ids=["name", "link"],
)
def test_names_are_those_of_a_file_system(
    tmp_path: pathlib.Path, member: tuple[str, str]
) -> None:
    path = test_capture.archive_of(
        tmp_path / "odd.tar.gz",
        ("meta.json", test_capture.GOOD_META),
        member,
    )
    with pytest.raises(errors.ArchiveError, match="too large"):
        capture.load(path)


def test_an_archive_has_not_any_number_of_members(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = test_capture.archive_of(
        tmp_path / "odd.tar.gz",
        ("meta.json", test_capture.GOOD_META),
        *((f"{test_capture.PLACE}/{n}", "") for n in range(40)),
    )
    monkeypatch.setattr(capture, "_MAX_FILES", 40)
    with pytest.raises(errors.ArchiveError, match="too large"):
        capture.load(path)


@pytest.mark.slow
def test_the_command_ends_for_the_longest_texts(
    tmp_path: pathlib.Path,
) -> None:
    whole, odd = tmp_path / "whole.tar.gz", tmp_path / "odd.tar.gz"
    test_capture.pack(look.make("t4-mdev", tmp_path / "host"), whole)
    texts = {
        "name": "GRID" + " " * 60_000 + "-1" * 40,
        "description": "w" * 60_000,
    }
    with tarfile.open(whole) as before, tarfile.open(odd, "w:gz") as after:
        for info in before:
            content = before.extractfile(info) if info.isreg() else None
            name = info.name.rpartition("/")[2]
            if "mdev_supported_types" in info.name and name in texts:
                content = io.BytesIO(texts[name].encode())
                info.size = len(texts[name])
            after.addfile(info, content)
    words = ("-m", "nova_accel.cli.commands", "inspect", "--root", str(odd))
    ended = subprocess.run(  # noqa: S603
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "T4" in ended.stdout
