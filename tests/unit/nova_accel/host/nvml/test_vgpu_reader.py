# SPDX-License-Identifier: Apache-2.0
"""Guests of running vGPUs, ECC and fabric are read from a fake NVML."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_state
from tests.lab.fakehost import standins

SOURCE = standins.SOURCES / "nvml/guestnvml.c"
GPU = "0000:41:00.0"
SERVER = "5f0c7a9e-0000-4000-8000-000000000001"
OTHER = "5f0c7a9e-0000-4000-8000-000000000002"
MDEV = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
SCRIPT = """
import json
from nova_accel.host.nvml import gpu_reader, gpu_state
print(json.dumps(gpu_state.to_plain(gpu_reader.read_gpus(5))))
"""


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build the fake library, which processes load from then on."""
    pytest.importorskip("pynvml")
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    directory = tmp_path_factory.mktemp("nvml")
    path = directory / "libnvidia-ml.so.1"
    flags = ("-O2", "-Wall", "-shared", "-fPIC")
    subprocess.run(  # noqa: S603 - our own words
        [*("gcc", "-o", path), *flags, SOURCE], check=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(directory))
        yield


def read(place: pathlib.Path, **files: str) -> nvml_gpus.NvmlGpus:
    """Return the GPU that files describe, read in another process."""
    for name, text in files.items():
        (place / name).write_text(text)
    completed = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", SCRIPT],
        env={
            **os.environ,
            "GUESTNVML": str(place),
            "PYTHONPATH": str(SOURCE.parents[4]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    gpus = gpu_state.from_plain(json.loads(completed.stdout))
    assert gpus.problems == ()
    return gpus


def test_licence_and_driver_of_each_guest_are_read(
    tmp_path: pathlib.Path,
) -> None:
    text = f"{SERVER} {MDEV} 232 5 550.163.01\n{OTHER} - 1145 3 -\n"
    vgpus = read(tmp_path, vgpus=text)[GPU].vgpus
    assert vgpus == (
        nvml_gpus.NvmlVgpu(
            server=SERVER,
            mdev=MDEV,
            type_id="232",
            license="licensed",
            expires="2027-01-31T12:00:00+00:00",
            driver="550.163.01",
        ),
        nvml_gpus.NvmlVgpu(
            server=OTHER, type_id="1145", license="unlicensed_restricted"
        ),
    )


def test_a_vgpu_that_ends_meanwhile_is_left_out(
    tmp_path: pathlib.Path,
) -> None:
    text = f"gone - 232 5 -\n{SERVER} - 232 0 -\n"
    (vgpu,) = read(tmp_path, vgpus=text)[GPU].vgpus or ()
    assert (vgpu.server, vgpu.license) == (SERVER, "")


def test_a_driver_without_vgpus_leaves_them_unknown(
    tmp_path: pathlib.Path,
) -> None:
    gpu = read(tmp_path)[GPU]
    assert (gpu.vgpus, gpu.ecc, gpu.fabric) == (None, None, None)


def test_ecc_and_fabric_are_read(tmp_path: pathlib.Path) -> None:
    gpu = read(tmp_path, vgpus="", ecc="1 0\n", fabric="2 0\n")[GPU]
    assert (gpu.vgpus, gpu.ecc) == ((), (True, False))
    assert gpu.fabric == ("in_progress", 0)
