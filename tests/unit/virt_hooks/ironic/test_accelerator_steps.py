# SPDX-License-Identifier: Apache-2.0
"""Steps of Ironic on a simulated machine."""

import hashlib
import pathlib
from typing import Any

import pytest

from nova_accel import errors
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_reader
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.support.hosts import executing, simulated_gpus
from virt_hooks.ironic import accelerator_steps

pytest.importorskip("pynvml")
pytestmark = pytest.mark.usefixtures("own_rights")
GPU, FLEX, QAT = "0000:3d:00.0", executing.FLEX, "0000:6b:00.0"
PAC, PLAIN = "0000:5e:00.0", "0000:71:00.0"
REGION = f"{PAC}/region-0"
A10 = "f64e598bea11517fa28e7bc65d885104"
NEW = "f7df405cbd7acf7222f144b0b93acd18"
MOUNT = simulated_gpus.mounted
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(
            address=GPU,
            model="A100",
            interface="vfio",
            mig=True,
            instances=(("1g.5gb", 0), ("3g.20gb", 4)),
        ),
        executing.FLEX_CARD,
        fakehost.QatCard(address=QAT),
        fakehost.DflCard(address=PAC),
        fakehost.PciCard(
            address=PLAIN,
            vendor=0x10DE,
            device=0x1E07,
            class_code=0x030000,
            driver="nouveau",
        ),
    )
)
CARDS = 5


@pytest.fixture
def steps(
    kernel: fakehost.Controller,
) -> accelerator_steps.AcceleratorSteps:
    return accelerator_steps.AcceleratorSteps(
        str(kernel.root), gpu_reader.read_gpus
    )


def inspected(vendor: str, product: str, count: int) -> list[dict[str, str]]:
    return [{"vendor_id": vendor, "device_id": product}] * count


def read(kernel: fakehost.Controller, function: str, name: str) -> str:
    place = kernel.sys / "bus/pci/devices" / function / name
    return place.read_text().strip()


# -- verify -------------------------------------------------------------------


def test_a_healthy_machine_is_verified(
    steps: accelerator_steps.AcceleratorSteps,
) -> None:
    result = steps.verify(inspected("10de", "1e07", 1))
    assert result["devices"] == CARDS


def test_a_missing_card_fails_the_step(
    steps: accelerator_steps.AcceleratorSteps,
) -> None:
    with pytest.raises(accelerator_steps.NodeStepError) as caught:
        steps.verify(inspected("10de", "1e07", 3))
    assert "2 of 3 devices 10de:1e07" in str(caught.value)


def test_a_card_off_its_bus_fails_the_step(
    steps: accelerator_steps.AcceleratorSteps, kernel: fakehost.Controller
) -> None:
    kernel.die_at_reset(PLAIN)
    (kernel.sys / f"bus/pci/devices/{PLAIN}/reset").write_text("1")
    with pytest.raises(accelerator_steps.NodeStepError, match="not answer"):
        steps.verify(())


# -- scrub ------------------------------------------------------------------


def test_partitions_are_removed_and_functions_are_reset(
    steps: accelerator_steps.AcceleratorSteps, kernel: fakehost.Controller
) -> None:
    kernel.set_vfs(FLEX, 4)
    result = steps.scrub()
    gpu = kernel.gpus()[GPU]
    assert not gpu["mig"]
    assert not gpu["instances"]
    assert read(kernel, FLEX, "sriov_numvfs") == "0"
    assert {GPU, FLEX, QAT, PLAIN} <= {*result["reset"]}
    resets = [w["path"] for w in kernel.writes() if "reset" in w["path"]]
    assert len(resets) == len(result["reset"])


@pytest.mark.parametrize("has_bus", [True, False])
def test_the_functions_of_a_card_are_reset_together(
    tmp_path: pathlib.Path, has_bus: bool
) -> None:
    """Functions that can't be reset are listed in the result."""
    names = ("0000:71:00.0", "0000:71:00.1")
    cards = tuple(
        fakehost.PciCard(
            address=name,
            vendor=0x10DE,
            device=0x2C34,
            class_code=kind,
            group=40,
            port="0000:70:01.0" if has_bus else "",
            reset_methods=methods,
        )
        for name, kind, methods in zip(
            names, (0x030000, 0x040300), (("bus",), ()), strict=True
        )
    )
    spec = fakehost.HostSpec(cards=cards)
    with fakehost.simulated_sysfs(spec, tmp_path) as kernel:
        own = accelerator_steps.AcceleratorSteps(
            str(kernel.root), lambda: nvml_gpus.NvmlGpus({})
        )
        result = own.scrub()
        writes = [w["path"].rpartition("/")[2] for w in kernel.writes()]
    expected = [*names] if has_bus else []
    assert result["reset"] == expected
    assert writes.count("reset_subordinate") == int(has_bus)
    assert "reset" not in writes


def test_all_cards_are_scrubbed_after_a_failure(
    steps: accelerator_steps.AcceleratorSteps, kernel: fakehost.Controller
) -> None:
    kernel.fail(f"bus/pci/devices/{FLEX}/reset", "EIO")
    with pytest.raises(accelerator_steps.NodeStepError) as caught:
        steps.scrub()
    assert FLEX in str(caught.value)
    resets = {w["path"] for w in kernel.writes() if "reset" in w["path"]}
    assert any(PLAIN in path for path in resets)


def test_a_card_that_dies_at_its_reset_fails_the_step(
    steps: accelerator_steps.AcceleratorSteps, kernel: fakehost.Controller
) -> None:
    kernel.die_at_reset(PLAIN)
    with pytest.raises(accelerator_steps.NodeStepError, match=PLAIN):
        steps.scrub()


# -- modes ------------------------------------------------------------------


def test_vfs_are_enabled_on_one_card(
    steps: accelerator_steps.AcceleratorSteps, kernel: fakehost.Controller
) -> None:
    result = steps.set_mode(FLEX, num_vfs=2)
    assert result == {"devices": [FLEX], "needs_reset": []}
    assert read(kernel, FLEX, "sriov_numvfs") == "2"


def test_mig_mode_is_switched(
    steps: accelerator_steps.AcceleratorSteps, kernel: fakehost.Controller
) -> None:
    steps.scrub()
    assert steps.set_mode(mig=True)["devices"] == [GPU]
    assert kernel.gpus()[GPU]["mig"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "mig .true or false. or num_vfs"),
        ({"mig": "yes"}, "mig .true or false. or num_vfs"),
        ({"num_vfs": "4"}, "mig .true or false. or num_vfs"),
        ({"num_vfs": -1}, "mig .true or false. or num_vfs"),
        ({"mig": True, "num_vfs": 1}, "mig .true or false. or num_vfs"),
        ({"device": PLAIN, "mig": True}, "has no GPU with MIG"),
        ({"device": PLAIN, "num_vfs": 1}, "has no card that can have VFs"),
        ({"device": FLEX, "num_vfs": 99}, "has at most 31 VFs"),
        ({"device": "0000:99:00.0", "num_vfs": 1}, "an accelerator of this"),
    ],
)
def test_arguments_of_a_mode_are_checked(
    steps: accelerator_steps.AcceleratorSteps,
    arguments: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises(errors.AcceleratorError, match=text):
        steps.set_mode(**arguments)


# -- FPGA images ------------------------------------------------------------


def write_image(place: pathlib.Path, interface: str = A10) -> str:
    path = place / "image.gbs"
    path.write_bytes(fpga.gbs(NEW, interface))
    return str(path)


def test_an_image_is_loaded_into_the_regions_that_it_fits(
    steps: accelerator_steps.AcceleratorSteps,
    kernel: fakehost.Controller,
    tmp_path: pathlib.Path,
) -> None:
    result = steps.program(write_image(tmp_path))
    assert result == {"devices": [REGION], "function": NEW}
    afus = kernel.sys.glob(f"bus/pci/devices/{PAC}/fpga_region/*/*/afu_id")
    assert [path.read_text().strip() for path in afus] == [NEW]


@pytest.mark.parametrize(
    ("interface", "device", "text"),
    [
        (hashlib.md5(b"").hexdigest(), "", "made for interface"),  # noqa: S324
        (A10, PLAIN, "there is none"),
    ],
)
def test_an_image_for_other_regions_is_refused(
    steps: accelerator_steps.AcceleratorSteps,
    tmp_path: pathlib.Path,
    interface: str,
    device: str,
    text: str,
) -> None:
    with pytest.raises(errors.BitstreamError, match=text):
        steps.program(write_image(tmp_path, interface), device)
