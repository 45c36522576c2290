# SPDX-License-Identifier: Apache-2.0
"""NVLink peers are read through NVIDIA's pynvml binding."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from nova_accel.cli import commands
from nova_accel.config import policy
from nova_accel.discovery import capture, plugin, scan
from nova_accel.geometry.topology import GpuLinks
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_reader, gpu_state
from nova_accel.host.sysfs import host_reader
from tests.lab import fakehost
from tests.support.hosts import simulated_gpus

STANDINS = pathlib.Path(__file__).parents[4] / "lab/standins/nvml"
T4, FIRST, SECOND = "0000:3b:00.0", "0000:41:00.0", "0000:61:00.0"
SWITCHED, AWAY = "0000:81:00.0", "0000:b1:00.0"
PORT = "0000:40:01.1"


def a100(address: str, *links: str, port: str = "") -> fakehost.NvidiaGpu:
    return fakehost.NvidiaGpu(
        address=address,
        model="A100",
        interface="vfio",
        enabled_vfs=2,
        port=port,
        links=links,
    )


MOUNT = simulated_gpus.mounted
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(address=T4, model="T4"),
        a100(FIRST, SECOND, SECOND, port=PORT),
        a100(SECOND, "", FIRST, port=PORT),
        a100(SWITCHED, "switch", "switch", AWAY),
    )
)


@pytest.fixture(name="host")
def fixture_host(mounted: fakehost.Controller) -> fakehost.Controller:
    return mounted


@pytest.fixture(autouse=True)
def _fixture_socket(
    host: fakehost.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKEHOST_CONTROL", str(host.socket))


def test_active_links_have_gpus_or_switches_as_peers() -> None:
    gpus = gpu_reader.read_gpus()
    assert gpus.problems == ()
    assert {address: gpu.links for address, gpu in gpus.items()} == {
        T4: GpuLinks(),
        FIRST: GpuLinks(peers=frozenset({SECOND})),
        SECOND: GpuLinks(peers=frozenset({FIRST})),
        SWITCHED: GpuLinks(is_switched=True),
    }


def test_a_link_to_a_card_of_another_driver_is_down(
    host: fakehost.Controller,
) -> None:
    drivers = host.sys / "bus/pci/drivers"
    (drivers / "nvidia/unbind").write_text(SECOND)
    assert gpu_reader.read_gpus()[FIRST].links == GpuLinks()
    (drivers / "nvidia/bind").write_text(SECOND)
    assert gpu_reader.read_gpus()[FIRST].links == GpuLinks(
        peers=frozenset({SECOND})
    )


def test_inspect_prints_traits_of_links(
    host: fakehost.Controller,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The report is of an archive of the host."""
    reader = host_reader.HostReader(
        host.sys.parent, gpus=gpu_reader.read_gpus()
    )
    archive = str(tmp_path / "host.tar.gz")
    state = scan.read(reader, plugin.load(), policy.DeviceRules())
    capture.save(reader, archive, {"format": capture.FORMAT})
    assert len(state.devices) == 4
    assert commands.main(["inspect", "--root", archive]) == 0
    lines = capsys.readouterr().out.split()
    assert lines.count("CUSTOM_ACCELERATOR_NVLINK_0000_41_00_0") == 1
    assert lines.count("CUSTOM_ACCELERATOR_NVLINK_0000_61_00_0") == 1
    assert lines.count("CUSTOM_ACCELERATOR_PCIE_0000_40_01_1") == 2


# -- a library that fails ---------------------------------------------------

SCRIPT = """
import json
from nova_accel.host.nvml import gpu_reader, gpu_state
from nova_accel.host.sysfs import host_reader
print(json.dumps(gpu_state.to_plain(gpu_reader.read_gpus(2))))
"""


def read_library(
    place: pathlib.Path, *files: str, before: str = ""
) -> tuple[nvml_gpus.NvmlGpus, str]:
    """Return GPUs and reasons, read from a library with failing GPUs."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    library = place / "libnvidia-ml.so.1"
    subprocess.run(  # noqa: S603 - our own words
        [
            *("gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", library),
            STANDINS / "illnvml.c",
        ],
        check=True,
    )
    for name in files:
        kind, _, text = name.partition("=")
        (place / kind).write_text(text)
    completed = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", before + SCRIPT],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(place),
            "ILLNVML": str(place),
            "PYTHONPATH": str(STANDINS.parents[3]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    gpus = gpu_state.from_plain(json.loads(completed))
    return gpus, "\n".join(p.reason for p in gpus.problems)


ILL = "0000:41:00.0"
PEER = "0000:42:00.0"


def test_without_nvlink_functions_links_are_unknown(
    tmp_path: pathlib.Path,
) -> None:
    before = (
        "import pynvml\n"
        "for name in [n for n in dir(pynvml) if 'GetNvLink' in n]:\n"
        "    delattr(pynvml, name)\n"
    )
    gpus, messages = read_library(tmp_path, "links", before=before)
    assert {gpu.links for gpu in gpus.values()} == {None}
    assert "NVLink" not in messages


def test_without_the_device_type_the_address_identifies_the_peer(
    tmp_path: pathlib.Path,
) -> None:
    before = "import pynvml\ndel pynvml.nvmlDeviceGetNvLinkRemoteDeviceType\n"
    gpus, messages = read_library(tmp_path, f"links=0 {PEER}", before=before)
    assert gpus[ILL].links == GpuLinks(peers=frozenset({PEER}))
    assert messages == ""


def test_a_lost_gpu_has_unknown_links(tmp_path: pathlib.Path) -> None:
    gpus, messages = read_library(tmp_path, f"links=0 {PEER}", "unlinked")
    assert gpus[ILL].links is None
    assert gpus[PEER].links == GpuLinks()
    assert "NVML can't read its NVLinks" in messages
    assert "GPU is lost" in gpus[ILL].fault


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (f"0 {PEER}\n", GpuLinks(peers=frozenset({PEER}))),
        (f"0 {PEER}\n0 {PEER}\n", GpuLinks(peers=frozenset({PEER}))),
        ("2 -\n", GpuLinks(is_switched=True)),
        ("1 0004:04:00.0\n", GpuLinks()),  # IBM's NPU
        ("0 -\n", GpuLinks()),  # hidden from a virtual machine
        ("255 -\n", GpuLinks()),
        ("", GpuLinks()),
    ],
)
def test_the_remote_end_of_a_link_is_classified(
    tmp_path: pathlib.Path, links: str, expected: GpuLinks
) -> None:
    gpus, messages = read_library(tmp_path, f"links={links}")
    assert gpus[ILL].links == expected
    assert messages == ""
