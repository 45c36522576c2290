# SPDX-License-Identifier: Apache-2.0
"""An FPGA card, programmed at spawn through real nova and glance.

The card is emulated; its drivers are the kernel's own, and what programs
it is their ioctl (drivers/fpga/dfl*.c).
"""

import json
from collections.abc import Iterator

import pytest

from tests.e2e.support.fpga_site import (
    ADDRESS,
    FAULTED,
    INTERFACE,
    LIB,
    PROGRAMMED,
    REBIND,
    REGION,
    REVIVE,
    afu_id,
    bitstream,
    check_free,
    check_offered,
    driver,
    function_of,
    heal,
    programmed,
    refused,
    restart,
)
from tests.e2e.support.site import Site, fault, wait_for
from tests.lab.vm import topology

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("clean", "card"),
]


@pytest.fixture(scope="module")
def drivers(lab: Site) -> Iterator[None]:
    """Load the card's drivers; let bitstreams of our project be loaded."""
    lab.on_host(f"{LIB}; lab_dfl")
    restart(lab)
    yield
    lab.clean()
    lab.on_host(f"{LIB}; lab_dfl off")
    lab.cloud.restart_compute()


@pytest.fixture
def card(lab: Site, drivers: None) -> Iterator[None]:
    """Leave the card in order, whatever a test made of it."""
    yield
    lab.clean()
    wait_for(lambda: is_region_reported(lab), "the region to be reported")
    if FAULTED in lab.providers()[REGION].traits:
        lab.on_host(REVIVE, topology.PAC_ADDRESS)
        heal(lab)


def is_region_reported(lab: Site) -> bool:
    """Return whether the region is offered, or set aside.

    A pass that comes while the host's driver takes the card back says of
    both nothing; the next one does.
    """
    region = lab.providers()[REGION]
    is_offered = not region.inventories["FPGA"]["reserved"]
    return is_offered or FAULTED in region.traits


@pytest.fixture
def one_vf(lab: Site) -> Iterator[str]:
    """Let nova-compute give the port to a virtual function, and back."""
    line = {"address": topology.PAC_ADDRESS, "num_vfs": 1}
    restart(lab, f"device_spec = {json.dumps(line)}")
    yield topology.PAC_VF_ADDRESS
    lab.clean()
    restart(lab, f"device_spec = {json.dumps(line | {'num_vfs': 0})}")
    lab.on_host(REBIND, topology.PAC_ADDRESS)
    restart(lab)
    check_offered(lab)


def test_card_and_region_are_providers(lab: Site) -> None:
    check_offered(lab)
    region = lab.providers()[REGION]
    assert function_of(region) == {afu_id(lab)}
    assert {INTERFACE, "CUSTOM_FPGA_PROGRAMMABLE"} <= region.traits
    assert not lab.providers()["0000_05_00_0"].inventories


def test_a_region_is_programmed_and_not_while_a_server_has_it(
    lab: Site,
) -> None:
    before = afu_id(lab)
    first, second = bitstream(lab), bitstream(lab)
    assert before not in (first.function, second.function)
    offset = lab.log_offset("nova-compute")
    server = lab.boot("e2e-first", programmed(lab, first))
    assert lab.logged("nova-compute", PROGRAMMED, offset)
    assert lab.hostdevs(server, "pci") == [topology.PAC_ADDRESS]
    assert driver(lab) == "vfio-pci"
    region = lab.providers()[REGION]
    assert lab.allocations(server)[region.uuid] == {"FPGA": 1}
    assert function_of(region) == {first.function}

    offset = lab.log_offset("nova-compute")
    flavor = programmed(lab, second)
    other = refused(lab, "second", flavor)
    assert not lab.logged("nova-compute", PROGRAMMED, offset)
    assert lab.hostdevs(server, "pci") == [topology.PAC_ADDRESS]

    lab.delete(server)
    lab.wait_gone(server)
    check_free(lab, server, other)
    assert afu_id(lab) == first.function

    again = lab.boot("e2e-again", flavor)
    assert function_of(lab.providers()[REGION]) == {second.function}
    again = lab.hard_reboot(again)
    assert again.status == "ACTIVE", fault(again)
    assert lab.hostdevs(again, "pci") == [topology.PAC_ADDRESS]
    lab.clean()
    check_free(lab, again)
    assert afu_id(lab) == second.function
    check_offered(lab)


@pytest.mark.long
def test_a_port_of_a_virtual_function(lab: Site, one_vf: str) -> None:
    check_offered(lab)
    first, second = bitstream(lab), bitstream(lab)
    server = lab.boot("e2e-vf", programmed(lab, first))
    assert lab.hostdevs(server, "pci") == [one_vf]
    assert driver(lab, one_vf) == "vfio-pci"
    assert driver(lab) == "dfl-pci"
    assert function_of(lab.providers()[REGION]) == {first.function}
    refused(lab, "second", programmed(lab, second))
    lab.clean()
    check_free(lab, server)
    assert driver(lab, one_vf) == "dfl-pci"
    assert afu_id(lab, one_vf) == first.function


@pytest.mark.parametrize(
    ("directive", "reason", "repair"),
    [
        pytest.param("ERROR", "EIO", REBIND, marks=pytest.mark.long),
        pytest.param(
            "SAME",
            "the region shows function",
            "",
            marks=pytest.mark.long,
        ),
        pytest.param("HANG", "ETIMEDOUT", REBIND, marks=pytest.mark.long),
        pytest.param("VANISH", "ETIMEDOUT", REVIVE, marks=pytest.mark.long),
    ],
    ids=("error", "same", "hang", "vanish"),
)
def test_a_region_that_fails_is_set_aside_until_it_is_healed(
    lab: Site, directive: str, reason: str, repair: str
) -> None:
    bad = bitstream(lab, directive)
    offset = lab.log_offset("nova-compute")
    server = refused(lab, "failed", programmed(lab, bad), reason)
    assert lab.logged("nova-compute", f"{ADDRESS} is set aside", offset)
    region = wait_for(
        lambda: next(
            (p for p in [lab.providers()[REGION]] if FAULTED in p.traits),
            None,
        ),
        "the region to be set aside",
    )
    assert region.inventories["FPGA"]["reserved"] == 1
    assert bad.function not in function_of(region)
    assert lab.claims() == {}
    assert lab.allocations(server) == {}
    good = bitstream(lab)
    flavor = programmed(lab, good)
    refused(lab, "meanwhile", flavor)

    if repair:
        lab.on_host(repair, topology.PAC_ADDRESS)
    heal(lab)
    check_offered(lab)
    server = lab.boot("e2e-healed", flavor)
    lab.clean()
    check_free(lab, server)
    assert afu_id(lab) == good.function
