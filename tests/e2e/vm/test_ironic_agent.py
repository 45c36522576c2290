# SPDX-License-Identifier: Apache-2.0
"""Inspection and steps in a real ironic-python-agent on a real kernel.

The cards are the lab's: the kernel resets them, makes their VFs, and loads the
FPGA card with its own drivers.
"""

import hashlib
import json
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support import ramdisk
from tests.e2e.support.vm_site import inside, wait_for
from tests.e2e.vm import MARKS
from tests.lab.fakehost import fpga
from tests.lab.vm import layout, topology
from tests.support import agent_api, golden
from virt_hooks.ironic import inspection_data, node_report, node_traits

pytestmark = MARKS

FLEX, PAC = topology.FLEX_ADDRESS, topology.PAC_ADDRESS
T4 = topology.T4_ADDRESS
CARDS = [topology.A40_ADDRESS, T4, FLEX, PAC]
DEVICES = "/sys/bus/pci/devices"
VFS = f"{DEVICES}/{FLEX}/sriov_numvfs"
AFU_ID = f"{DEVICES}/{PAC}/fpga_region/region*/dfl-port.*/afu_id"
LIB = '. "$LAB_GUEST/lib.sh"'


@pytest.fixture(scope="module")
def machine(lab_vm: pathlib.Path) -> Iterator[pathlib.Path]:
    """Return the lab with the drivers that a ramdisk has for the cards."""
    if layout.layout_of(lab_vm).debian != layout.STOCK:
        pytest.skip("the machine does not see the agent's environment")
    inside(lab_vm, f"{LIB}; lab_insmod xe && lab_dfl")
    yield lab_vm
    inside(lab_vm, f"{LIB}; echo 0 > {VFS}; rmmod xe; lab_dfl off")


@pytest.fixture(scope="module")
def agent(machine: pathlib.Path) -> Iterator[ramdisk.RamdiskAgent]:
    with ramdisk.start(machine) as running:
        yield running


@pytest.fixture(scope="module")
def report(agent: ramdisk.RamdiskAgent) -> node_report.NodeReport:
    """Return the report that the agent sent when it started."""
    return inspection_data.parse(agent.read_inspection()["accelerators"])


@pytest.fixture(scope="module")
def node(report: node_report.NodeReport) -> dict[str, Any]:
    """Return the node as the inspection hook leaves it."""
    return agent_api.describe_node(*node_traits.list_properties(report))


def read(lab: pathlib.Path, path: str) -> str:
    return inside(lab, f"cat {path}").strip()


def check_page(name: str, record: dict[str, Any]) -> None:
    """Check that a step answers what the manual shows."""
    fields = {
        key: value
        for key, value in record.items()
        if key.startswith("command_") and value is not None
    }
    golden.check(
        golden.PLACE / "ironic" / "steps" / f"{name}.json",
        json.dumps(fields, indent=1, ensure_ascii=False) + "\n",
    )


def test_the_agent_inspects_the_machine(
    report: node_report.NodeReport,
) -> None:
    assert report.is_complete and not report.error
    traits = node_traits.plan_traits(report, frozenset(), ()).traits
    assert {
        "CUSTOM_GPU_NVIDIA_T4_X1",
        "CUSTOM_FPGA_REGION",
        f"CUSTOM_FPGA_INTERFACE_{topology.PAC_INTERFACE.upper()}",
    } <= {*traits}


@pytest.mark.parametrize(("phase", "expected"), agent_api.OUR_STEPS.items())
def test_the_agent_offers_the_steps(
    agent: ramdisk.RamdiskAgent,
    node: dict[str, Any],
    phase: str,
    expected: dict[str, int],
) -> None:
    assert expected.items() <= agent.list_steps(phase, node).items()


def test_vfs_are_made_and_removed(
    machine: pathlib.Path, agent: ramdisk.RamdiskAgent, node: dict[str, Any]
) -> None:
    record = agent.run_step(
        "deploy", "accel_set_mode", node, num_vfs=2, device=FLEX
    )
    assert agent_api.result_of(record, "deploy")["devices"] == [FLEX]
    assert read(machine, VFS) == "2"
    record = agent.run_step("clean", "accel_scrub", node)
    assert {*CARDS} <= {*agent_api.result_of(record, "clean")["reset"]}
    assert read(machine, VFS) == "0"
    check_page("accel_scrub", record)


def test_a_node_is_verified(
    agent: ramdisk.RamdiskAgent, node: dict[str, Any]
) -> None:
    record = agent.run_step("clean", "accel_verify", node)
    result = agent_api.result_of(record, "clean")
    assert result["devices"] == len(node["properties"]["accelerators"])
    check_page("accel_verify", record)


def test_a_card_that_left_fails_the_cleaning(
    machine: pathlib.Path, agent: ramdisk.RamdiskAgent, node: dict[str, Any]
) -> None:
    inside(machine, f"echo 1 > {DEVICES}/{T4}/remove")
    try:
        record = agent.run_step("clean", "accel_verify", node)
    finally:
        inside(machine, "echo 1 > /sys/bus/pci/rescan")
    assert "1 of 1 devices 10de:1eb8" in agent_api.error_of(record)
    check_page("missing-card", record)


@pytest.mark.parametrize("phase", ["deploy", "service"])
def test_an_image_is_loaded(
    machine: pathlib.Path,
    agent: ramdisk.RamdiskAgent,
    node: dict[str, Any],
    phase: str,
) -> None:
    function = uuid.uuid5(uuid.NAMESPACE_URL, phase).hex
    content = fpga.gbs(function, topology.PAC_INTERFACE)
    record = agent.run_step(
        phase,
        "accel_program",
        node,
        url=agent.add_image(f"{phase}.gbs", content),
        checksum=hashlib.sha256(content).hexdigest(),
    )
    assert agent_api.result_of(record, phase)["function"] == function
    assert read(machine, AFU_ID) == function
    check_page(f"accel_program-{phase}", record)


def test_an_image_with_another_checksum_is_not_loaded(
    machine: pathlib.Path, agent: ramdisk.RamdiskAgent, node: dict[str, Any]
) -> None:
    before = read(machine, AFU_ID)
    content = fpga.gbs(uuid.UUID(int=1).hex, topology.PAC_INTERFACE)
    record = agent.run_step(
        "deploy",
        "accel_program",
        node,
        url=agent.add_image("other.gbs", content),
        checksum="0" * 64,
    )
    assert "its sha256 is" in agent_api.error_of(record)
    assert read(machine, AFU_ID) == before
    check_page("wrong-checksum", record)


def test_a_card_that_falls_off_the_bus_fails_its_steps(
    machine: pathlib.Path, agent: ramdisk.RamdiskAgent, node: dict[str, Any]
) -> None:
    content = fpga.gbs(uuid.UUID(int=2).hex, topology.PAC_INTERFACE, "VANISH")
    try:
        record = agent.run_step(
            "deploy",
            "accel_program",
            node,
            url=agent.add_image("vanish.gbs", content),
            checksum=hashlib.sha256(content).hexdigest(),
        )
        assert PAC in agent_api.error_of(record)
        record = agent.run_step("clean", "accel_verify", node)
        assert PAC in agent_api.error_of(record)
    finally:
        inside(machine, f"{LIB}; lab_revive {PAC}")
        wait_for(lambda: bool(read(machine, AFU_ID)), "the card")
