# SPDX-License-Identifier: Apache-2.0
"""An FPGA card, programmed at spawn through real nova and glance.

The card is emulated; its drivers are the kernel's own, and what programs
it is their ioctl (drivers/fpga/dfl*.c).
"""

import hashlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support.fpga_site import (
    ADDRESS,
    BYTES,
    FAULTED,
    FUNCTION,
    INTERFACE,
    LIB,
    PROGRAMMED,
    REBIND,
    REGION,
    REVIVE,
    Bitstream,
    afu_id,
    bitstream,
    check_free,
    check_offered,
    driver,
    function_of,
    gbs,
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
def test_a_function_that_is_there_is_given_as_it_is(lab: Site) -> None:
    function = afu_id(lab)
    flavor = lab.flavor(
        "function",
        **{
            "resources_FPGA__FPGA": "1",
            f"trait_FPGA__{FUNCTION}{function.upper()}": "required",
        },
    )
    offset = lab.log_offset("nova-compute")
    server = lab.boot("e2e-function", flavor)
    assert lab.hostdevs(server, "pci") == [topology.PAC_ADDRESS]
    assert not lab.logged("nova-compute", PROGRAMMED, offset)
    # no driver shows it now, and it is known all the same
    restart(lab)
    region = lab.providers()[REGION]
    assert function_of(region) == {function}
    assert lab.allocations(server)[region.uuid] == {"FPGA": 1}
    assert lab.hostdevs(server, "pci") == [topology.PAC_ADDRESS]
    lab.clean()
    check_free(lab, server)
    assert afu_id(lab) == function


@pytest.mark.long
def test_of_two_servers_one_wins(lab: Site) -> None:
    bitstreams = [bitstream(lab) for _ in range(2)]
    flavors = [programmed(lab, loaded) for loaded in bitstreams]
    requested = [lab.request(f"e2e-{f.name}", f) for f in flavors]
    servers = [lab.await_build(server) for server in requested]
    states = [server.status for server in servers]
    assert sorted(states) == ["ACTIVE", "ERROR"], [
        fault(server) for server in servers
    ]
    won = states.index("ACTIVE")
    assert lab.hostdevs(servers[won], "pci") == [topology.PAC_ADDRESS]
    lab.clean()
    check_free(lab, *servers)
    assert afu_id(lab) == bitstreams[won].function


@pytest.mark.long
def test_a_blank_one_is_loaded_after_each_server(lab: Site) -> None:
    blank = uuid.uuid4()
    path = lab.layout.state / "blank.gbs"
    path.write_bytes(gbs(blank))
    line = {"address": topology.PAC_ADDRESS, "blank": str(path)}
    restart(lab, f"device_spec = {json.dumps(line)}")
    loaded = bitstream(lab, make=gbs)
    server = lab.boot("e2e-blanked", programmed(lab, loaded))
    assert function_of(lab.providers()[REGION]) == {loaded.function}
    lab.clean()
    check_free(lab, server)
    assert afu_id(lab) == blank.hex
    wait_for(
        lambda: function_of(lab.providers()[REGION]) == {blank.hex},
        "placement to know of it",
    )
    restart(lab)
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


@pytest.mark.long
def test_a_function_and_an_mdev_in_one_flavor(lab: Site) -> None:
    loaded = bitstream(lab)
    flavor = programmed(
        lab,
        loaded,
        resources_ACCEL1__CUSTOM_MDEV="1",
        trait_ACCEL1__CUSTOM_MDEV_MTTY_2="required",
        group_policy="none",
    )
    server = lab.boot("e2e-both", flavor)
    assert lab.hostdevs(server, "pci") == [topology.PAC_ADDRESS]
    assert set(lab.hostdevs(server, "mdev")) == lab.mdevs()
    assert len(lab.mdevs()) == 1
    assert function_of(lab.providers()[REGION]) == {loaded.function}
    lab.clean()
    check_free(lab, server)
    assert lab.mdevs() == set()
    assert afu_id(lab) == loaded.function


@pytest.mark.parametrize(
    ("directive", "reason", "repair"),
    [
        pytest.param("ERROR", "EIO", REBIND, marks=pytest.mark.long),
        ("SAME", "the region shows function", ""),
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


def _wrong_interface(lab: Site) -> Bitstream:
    return bitstream(lab, accelerator_interface_id=str(uuid.uuid4()))


def _wrong_hash(lab: Site) -> Bitstream:
    return bitstream(lab, accelerator_sha512=hashlib.sha512().hexdigest())


def _truncated(lab: Site) -> Bitstream:
    image = bitstream(lab)
    with (lab.layout.images / image.image).open("r+b") as file:
        file.truncate(BYTES // 2)
    return image


def _of_others(lab: Site) -> Bitstream:
    return bitstream(lab, owner=uuid.uuid4().hex)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_wrong_interface, "is made for interface"),
        pytest.param(_wrong_hash, "sha512", marks=pytest.mark.long),
        (_truncated, "can't read it from Glance"),
        pytest.param(_of_others, "bitstream_images", marks=pytest.mark.long),
    ],
    ids=("interface", "hash", "truncated", "owner"),
)
def test_what_must_not_be_loaded_touches_nothing(
    lab: Site, make: Any, reason: str
) -> None:
    before = afu_id(lab)
    server = refused(lab, "refused", programmed(lab, make(lab)), reason)
    assert afu_id(lab) == before
    check_free(lab, server)
    check_offered(lab)
    assert function_of(lab.providers()[REGION]) == {before}
