# SPDX-License-Identifier: Apache-2.0
"""Inspection and steps in a real ironic-python-agent, with a real Ironic."""

import functools
import hashlib
import http.server
import pathlib
import threading
from collections.abc import Iterator
from urllib import parse

import pytest

from tests.functional.ironic import agent_service, ironic_service
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.support import agent_api
from tests.support.hosts import executing

PAC, T4 = "0000:5e:00.0", "0000:71:00.0"
FLEX = executing.FLEX
A10 = "f64e598bea11517fa28e7bc65d885104"
OLD = "d8424dc4a4a3c413f89e433683f9040b"
NEW = "f7df405cbd7acf7222f144b0b93acd18"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.DflCard(address=PAC, functions=(OLD,)),
        executing.FLEX_CARD,
        fakehost.PciCard(
            address=T4,
            vendor=0x10DE,
            device=0x1EB8,
            class_code=0x030200,
            driver="nouveau",
        ),
    )
)
INSPECTED = [
    {"vendor_id": "10de", "device_id": "1eb8"},
    {"vendor_id": "8086", "device_id": "56c0"},
    {"vendor_id": "8086", "device_id": "09c4"},
]
NODE = agent_api.describe_node(*INSPECTED)


@pytest.fixture(scope="module")
def machine(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[fakehost.Controller]:
    if reason := fakehost.missing() or agent_service.missing():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("machine")
    with fakehost.simulated_sysfs(SPEC, root) as controller:
        yield controller


@pytest.fixture(scope="module")
def image(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, str]]:
    """Return URL and checksum of an image for the FPGA card."""
    place = tmp_path_factory.mktemp("images")
    content = fpga.gbs(NEW, A10)
    (place / "image.gbs").write_bytes(content)
    serve = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(place)
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield (
            f"http://127.0.0.1:{server.server_port}/image.gbs",
            hashlib.sha256(content).hexdigest(),
        )
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def agent(
    machine: fakehost.Controller,
    image: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[agent_service.Agent]:
    state = tmp_path_factory.mktemp("agent")
    # Its /dev has the names that nodes have after the reboots of the tests.
    machine.reboot()
    images = parse.urlsplit(image[0]).netloc
    with agent_service.start(machine.root, state, images=images) as running:
        running.await_api()
        yield running


def read(machine: fakehost.Controller, function: str, name: str) -> str:
    place = machine.sys / "bus/pci/devices" / function / name
    return place.read_text().strip()


def loaded(machine: fakehost.Controller) -> list[str]:
    afus = machine.sys.glob(f"bus/pci/devices/{PAC}/fpga_region/*/*/afu_id")
    return [path.read_text().strip() for path in afus]


@pytest.fixture(scope="module")
def inspected(
    ironic: ironic_service.Ironic,
    machine: fakehost.Controller,
    tmp_path_factory: pytest.TempPathFactory,
) -> ironic_service.BareMetal:
    """Return the machine's node, which its agent has inspected."""
    place = tmp_path_factory.mktemp("inspection")
    node = ironic.create(agent_service.read_mac(), deploy_interface="direct")
    ironic.begin_inspection(node)
    ironic.await_state(node, "inspect wait")
    with agent_service.start(machine.root, place, ironic.url) as running:
        ironic.await_state(node, "manageable", running.process)
    return node


def test_a_machine_is_inspected_by_its_agent(
    ironic: ironic_service.Ironic, inspected: ironic_service.BareMetal
) -> None:
    assert {
        "CUSTOM_FPGA_INTEL_ARRIA_10_PAC_X1",
        f"CUSTOM_FPGA_FUNCTION_{OLD.upper()}",
        "CUSTOM_GPU_8086_56C0_X1",
        "CUSTOM_GPU_NVIDIA_T4_X1",
    } <= ironic.traits(inspected)


@pytest.mark.long
def test_ironic_cleans_a_node_through_its_agent(
    ironic: ironic_service.Ironic,
    machine: fakehost.Controller,
    inspected: ironic_service.BareMetal,
    tmp_path: pathlib.Path,
) -> None:
    machine.set_vfs(FLEX, 4)
    # Not its automated cleaning, which erases disks: the agent sees those of
    # the computer that runs this test.
    steps = [
        {"interface": "deploy", "step": name}
        for name in ("accel_scrub", "accel_verify")
    ]
    ironic.change_state(inspected, "clean", clean_steps=steps)
    ironic.await_state(inspected, "clean wait")
    with agent_service.start(machine.root, tmp_path, ironic.url) as running:
        ironic.await_state(inspected, "manageable", running.process)
    assert read(machine, FLEX, "sriov_numvfs") == "0"


@pytest.mark.long
def test_ironic_services_a_node_through_its_agent(
    ironic: ironic_service.Ironic,
    machine: fakehost.Controller,
    inspected: ironic_service.BareMetal,
    image: tuple[str, str],
    tmp_path: pathlib.Path,
) -> None:
    machine.reboot()
    ironic.adopt(inspected)
    url, checksum = image
    step = {
        "interface": "deploy",
        "step": "accel_program",
        "args": {"url": url, "checksum": checksum},
    }
    ironic.change_state(inspected, "service", service_steps=[step])
    ironic.await_state(inspected, "service wait")
    images = parse.urlsplit(url).netloc
    with agent_service.start(
        machine.root, tmp_path, ironic.url, images
    ) as running:
        ironic.await_state(inspected, "active", running.process)
    assert loaded(machine) == [NEW]


@pytest.mark.parametrize(("phase", "expected"), agent_api.OUR_STEPS.items())
def test_the_agent_offers_the_steps(
    agent: agent_service.Agent, phase: str, expected: dict[str, int]
) -> None:
    offered = agent.list_steps(phase, NODE)
    assert expected.items() <= offered.items()
    assert "erase_devices" in offered or phase != "clean"


def test_a_node_is_cleaned(
    agent: agent_service.Agent, machine: fakehost.Controller
) -> None:
    machine.set_vfs(FLEX, 4)
    scrubbed = agent.run_step("clean", "accel_scrub", NODE)
    assert {FLEX, T4} <= {*agent_api.result_of(scrubbed, "clean")["reset"]}
    assert read(machine, FLEX, "sriov_numvfs") == "0"
    verified = agent.run_step("clean", "accel_verify", NODE)
    assert agent_api.result_of(verified, "clean")["devices"] == len(INSPECTED)


def test_a_missing_card_fails_the_cleaning(agent: agent_service.Agent) -> None:
    node = agent_api.describe_node(*INSPECTED, INSPECTED[0])
    record = agent.run_step("clean", "accel_verify", node)
    error = agent_api.error_of(record)
    assert "1 of 2 devices 10de:1eb8" in error


@pytest.mark.parametrize("phase", ["deploy", "service"])
def test_an_image_is_loaded(
    agent: agent_service.Agent,
    machine: fakehost.Controller,
    image: tuple[str, str],
    phase: str,
) -> None:
    machine.reboot()
    assert loaded(machine) == [OLD]
    url, checksum = image
    record = agent.run_step(
        phase, "accel_program", NODE, url=url, checksum=checksum
    )
    assert agent_api.result_of(record, phase)["function"] == NEW
    assert loaded(machine) == [NEW]


def test_an_image_with_another_checksum_is_not_loaded(
    agent: agent_service.Agent,
    machine: fakehost.Controller,
    image: tuple[str, str],
) -> None:
    machine.reboot()
    record = agent.run_step(
        "deploy", "accel_program", NODE, url=image[0], checksum="0" * 64
    )
    assert "its sha256 is" in agent_api.error_of(record)
    assert loaded(machine) == [OLD]


def test_an_image_of_another_host_is_not_fetched(
    agent: agent_service.Agent, image: tuple[str, str]
) -> None:
    url = "http://169.254.169.254/openstack/latest/meta_data.json"
    record = agent.run_step(
        "deploy", "accel_program", NODE, url=url, checksum=image[1]
    )
    assert "nova-accel-image-hosts" in agent_api.error_of(record)


def test_a_mode_is_set(
    agent: agent_service.Agent, machine: fakehost.Controller
) -> None:
    record = agent.run_step(
        "deploy", "accel_set_mode", NODE, num_vfs=2, device=FLEX
    )
    assert agent_api.result_of(record, "deploy")["devices"] == [FLEX]
    assert read(machine, FLEX, "sriov_numvfs") == "2"
