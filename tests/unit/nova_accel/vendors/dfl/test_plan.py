# SPDX-License-Identifier: Apache-2.0
"""Proves which actions are planned for Intel FPGA cards."""

import pathlib

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions
from nova_accel.vendors.intel_dfl import dfl_driver
from tests.hosts import build, look

DRIVER = dfl_driver.DflDriver()
PF, BEHIND, IN_GUEST = "0000:05:00.0", "0000:15:00.0", "0000:25:00.0"
BITSTREAM = model.Bitstream(
    name="image",
    vendor="intel",
    path="/var/lib/nova-accel/image.gbs",
    function="d8424dc4a4a3c413f89e433683f9040b",
    interface="f64e598bea11517fa28e7bc65d885104",
    sha512="0" * 128,
    size=1,
)


def claim(
    state: model.HostState, card: str, bitstream: model.Bitstream | None
) -> model.Claim:
    device = look.device(state, f"{card}/region-0")
    return model.Claim(
        consumer="c",
        provider="p",
        device=device.address,
        profile="region",
        slot=device.slots[0],
        parent=device.slots[0],
        handle=device.slots[0],
        technology="fpga",
        region=device.region,
        bitstream=bitstream,
    )


def arrange(
    root: pathlib.Path, card: str, count: int
) -> tuple[actions.Action, ...]:
    lines = [f'{{"address": "{card}", "use": "fpga", "num_vfs": {count}}}']
    rules = policy.parse_rules(lines)
    return tuple(DRIVER.plan_arrange(host_reader.HostReader(root), rules))


def reasons(root: pathlib.Path, card: str, count: int) -> str:
    line = f'{{"address": "{card}", "use": "fpga", "num_vfs": {count}}}'
    return look.reasons(look.read(root, [line]), card)


def port(card: str, number: int, is_released: bool) -> actions.SetPort:
    return actions.SetPort(card=card, number=number, is_released=is_released)


@pytest.fixture
def pac(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make("dfl-pac", tmp_path)


@pytest.fixture
def n6000(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make("dfl-n6000", tmp_path)


def test_a_claim_without_a_bitstream_needs_no_action(
    pac: pathlib.Path,
) -> None:
    state = look.read(pac)
    for card in (PF, BEHIND):
        region_claim = claim(state, card, None)
        assert (
            DRIVER.plan_prepare(region_claim)
            == DRIVER.plan_release(region_claim)
            == ()
        )


def test_a_whole_card_is_programmed_in_any_case(pac: pathlib.Path) -> None:
    region_claim = claim(look.read(pac), PF, BITSTREAM)
    (program,) = DRIVER.plan_prepare(region_claim)
    assert program == actions.ProgramRegion(
        card=PF, number=0, slot=PF, bitstream=BITSTREAM, is_forced=True
    )
    assert DRIVER.plan_release(region_claim) == (program,)


@pytest.mark.parametrize("card", [BEHIND, IN_GUEST])
def test_behind_a_vf_the_hosts_driver_must_show_it(
    pac: pathlib.Path, card: str
) -> None:
    region_claim = claim(look.read(pac), card, BITSTREAM)
    vf = card.replace(".0", ".1")
    assert DRIVER.plan_prepare(region_claim) == (
        actions.BindDriver(function=vf, driver="dfl-pci"),
        actions.ProgramRegion(
            card=card, number=0, slot=vf, bitstream=BITSTREAM
        ),
    )
    assert DRIVER.plan_release(region_claim) == DRIVER.plan_prepare(
        region_claim
    )


def test_the_older_driver_has_a_tool(tmp_path: pathlib.Path) -> None:
    state = look.read(look.make("dfl-older", tmp_path))
    (program,) = DRIVER.plan_prepare(claim(state, PF, BITSTREAM))
    assert isinstance(program, actions.ProgramRegion)
    assert program.tool == "fpgaconf"
    bind, program = DRIVER.plan_prepare(claim(state, IN_GUEST, BITSTREAM))
    assert isinstance(bind, actions.BindDriver)
    assert bind.driver == "intel-fpga-pci"


def rebound(card: str) -> tuple[actions.BindDriver, actions.BindDriver]:
    """Return the actions that make the host's driver find a returned port."""
    return (
        actions.BindDriver(function=card, driver="", before="dfl-pci"),
        actions.BindDriver(function=card, driver="dfl-pci"),
    )


def test_a_vf_needs_a_released_port(pac: pathlib.Path) -> None:
    enable = actions.SetVfCount(function=PF, count=1)
    assert arrange(pac, PF, 1) == (port(PF, 0, True), enable)
    assert enable.is_probed
    assert "when nova-compute starts" in reasons(pac, PF, 1)
    # Half done by an earlier attempt.
    half = "0000:35:00.0"
    assert arrange(pac, half, 1) == (
        actions.SetVfCount(function=half, count=1),
    )
    assert arrange(pac, half, 0) == (port(half, 0, False), *rebound(half))


def test_a_card_in_the_right_mode_needs_no_action(pac: pathlib.Path) -> None:
    assert arrange(pac, PF, 0) == arrange(pac, BEHIND, 1) == ()
    assert not reasons(pac, PF, 0)
    assert not reasons(pac, BEHIND, 1)
    host = host_reader.HostReader(pac)
    assert DRIVER.plan_arrange(host, policy.DeviceRules()) == ()


def test_a_port_is_taken_back_when_its_vf_is_gone(pac: pathlib.Path) -> None:
    assert arrange(pac, BEHIND, 0) == (
        actions.SetVfCount(function=BEHIND, count=0, before=1),
        port(BEHIND, 0, False),
        *rebound(BEHIND),
    )


def test_another_number_of_vfs(pac: pathlib.Path) -> None:
    card = "0001:b5:00.0"
    assert arrange(pac, card, 2) == (
        actions.SetVfCount(function=card, count=0, before=1),
        port(card, 0, True),
        actions.SetVfCount(function=card, count=2),
    )
    both = "0001:c5:00.0"
    assert arrange(pac, both, 1) == (
        port(both, 0, True),
        actions.SetVfCount(function=both, count=1),
    )


@pytest.mark.parametrize(
    ("card", "count", "word"),
    [
        (IN_GUEST, 0, "may be in use"),
        ("0000:55:00.0", 1, "bound to vfio-pci"),
        (PF, 2, "lower num_vfs"),
        ("0000:65:00.0", 1, "lower num_vfs"),
    ],
)
def test_used_or_impossible_vf_counts_are_not_changed(
    pac: pathlib.Path, card: str, count: int, word: str
) -> None:
    assert arrange(pac, card, count) == ()
    assert word in reasons(pac, card, count)


def test_more_vfs_than_ports_are_not_made(pac: pathlib.Path) -> None:
    place = pac / "sys/bus/pci/devices" / PF / "sriov_totalvfs"
    place.write_text("4\n")
    assert arrange(pac, PF, 4) == ()
    assert "1 ports" in reasons(pac, PF, 4)


def test_a_used_pf_is_left_alone(pac: pathlib.Path) -> None:
    whole = "0000:55:00.0"
    for count in (0, 1):
        assert arrange(pac, whole, count) == ()
    assert not reasons(pac, whole, 0)


def test_vfs_of_some_cards_need_no_port(n6000: pathlib.Path) -> None:
    bare, full = "0000:01:00.0", "0000:b1:00.0"
    assert arrange(n6000, bare, 3) == (
        actions.SetVfCount(function=bare, count=3),
    )
    assert arrange(n6000, full, 3) == ()
    assert arrange(n6000, full, 0) == (
        actions.SetVfCount(function=full, count=0, before=3),
    )


def test_the_older_driver_changes_no_vf_count(tmp_path: pathlib.Path) -> None:
    root = look.make("dfl-older", tmp_path)
    assert arrange(root, PF, 1) == ()
    assert "bound to intel-fpga-pci" in reasons(root, PF, 1)


@pytest.mark.parametrize("bus", ["46", "47", "48"])
def test_a_card_that_cant_be_read_is_left_alone(
    tmp_path: pathlib.Path, bus: str
) -> None:
    root = look.make("dfl-broken", tmp_path)
    card = f"0000:{bus}:00.0"
    for name in ("sriov_totalvfs", "sriov_numvfs"):
        path = f"bus/pci/devices/{card}/{name}"
        build.break_path(root, path, "2\n" if "total" in name else "0\n")
    for count in (0, 1, 2):
        assert arrange(root, card, count) == ()


def test_the_plan_of_a_count_can_be_taken_back(pac: pathlib.Path) -> None:
    there = arrange(pac, PF, 1)
    assert [a.undo() for a in reversed(there)] == [
        actions.SetVfCount(function=PF, count=0, before=1),
        port(PF, 0, False),
    ]
