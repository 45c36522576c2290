# SPDX-License-Identifier: Apache-2.0
"""Proves how AMD Alveo cards are described and programmed."""

import dataclasses
import pathlib
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.host.fpga import xrt
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names
from nova_accel.vendors.amd_alveo import alveo_driver
from tests.hosts import build, look

U250, U250_USER = "0000:d8:00.0", "0000:d8:00.1"
FUNCTION = "5a3c1f0e6f1d4b6c8f0e0c3b1d5e7a90"
INTERFACE = "08cd2b8e0d6c4b8f9a6a3e2e4b4d5b8d"


def region(state: model.HostState, card: str) -> model.Device:
    return look.device(state, names.region_address(card, 0))


def region_of(state: model.HostState, card: str) -> model.Region:
    card_region = region(state, card).region
    assert card_region is not None
    return card_region


@pytest.fixture(name="state", scope="module")
def fixture_state(
    tmp_path_factory: pytest.TempPathFactory,
) -> model.HostState:
    return look.read(look.make("alveo-cards", tmp_path_factory.mktemp("h")))


def u250(**facts: Any) -> list[dict[str, Any]]:
    """Return the functions of a U250; facts replace the user function's."""
    described = build.load("alveo-cards")["functions"]
    manager, user = (dict(f) for f in described if "d8:00" in f["address"])
    return [manager, {**user, **facts}]


def read(
    root: pathlib.Path,
    functions: list[dict[str, Any]],
    *rules: str,
    faults: dict[str, str] | None = None,
) -> model.HostState:
    broken = [
        {"path": path, "is": {"fault": fault}}
        for path, fault in (faults or {}).items()
    ]
    build.build({"functions": functions, "faults": broken}, root)
    return scan.read(
        host_reader.HostReader(root),
        {
            "alveo": alveo_driver.AlveoDriver(),
            "pci_passthrough": look.DRIVERS["pci_passthrough"],
        },
        policy.parse_rules(rules),
    )


def test_a_function_bound_to_another_driver_is_not_offered(
    tmp_path: pathlib.Path,
) -> None:
    state = read(tmp_path, u250(driver="qdma-pf"))
    assert region(state, U250).counters == {}
    assert "qdma-pf" in look.reasons(state, U250)


def test_a_card_that_cant_be_reset_stays_with_the_host(
    tmp_path: pathlib.Path,
) -> None:
    functions = u250()
    functions[1]["attributes"]["reset_method"] = ""
    state = read(tmp_path, functions)
    assert region(state, U250).counters == {}
    assert "reset_method" in look.reasons(state, U250)


def test_without_xocl_nothing_can_be_loaded(tmp_path: pathlib.Path) -> None:
    state = read(tmp_path, u250(driver="vfio-pci"))
    assert region(state, U250).counters == {"FPGA": 1}
    assert not region_of(state, U250).is_programmable
    assert "no driver xocl" in look.reasons(state, U250)


def test_an_unknown_board_is_named_by_its_driver(
    tmp_path: pathlib.Path,
) -> None:
    manager, user = u250(id="10ee:9999", driver="vfio-pci")
    manager["id"] = "10ee:9998"
    manager["attributes"] |= {"board_name": "u999"}
    state = read(tmp_path, [manager, user])
    assert look.device(state, U250).model == "U999"
    assert region(state, U250).slots == (U250_USER,)


def test_further_functions_belong_to_the_card(tmp_path: pathlib.Path) -> None:
    third = {"address": "0000:d8:00.2", "id": "10ee:5009", "class": "120000"}
    state = read(tmp_path, [*u250(), third])
    assert look.device(state, U250).members == (U250_USER, "0000:d8:00.2")
    assert region(state, U250).slots == (U250_USER,)


def test_a_user_function_that_cant_be_read_loses_no_card(
    tmp_path: pathlib.Path,
) -> None:
    path = f"bus/pci/devices/{U250_USER}/vendor"
    state = read(tmp_path, u250(), faults={path: "EIO"})
    card = look.device(state, U250)
    assert (card.vendor_id, card.product_id) == ("10ee", "5004")
    assert card.model == "U250"
    assert region(state, U250).slots == (U250_USER,)
    assert region(state, U250).counters == {}
    assert f"{U250_USER} can't be read" in look.reasons(state, U250)


def test_an_unreadable_function_is_unknown(
    tmp_path: pathlib.Path,
) -> None:
    path = f"bus/pci/devices/{U250_USER}/xclbinuuid"
    state = read(tmp_path, u250(), faults={path: "EIO"})
    assert region_of(state, U250).function is None
    assert region(state, U250).counters == {"FPGA": 1}
    assert "xclbinuuid" in look.reasons(state, U250)


WHOLE = '{"%s": "%s", "use": "passthrough", "scrub": "none"}'


@pytest.mark.parametrize(
    ("line", "technology"),
    [
        ('{"address": "0000:d8:00.0", "use": "fpga"}', "fpga"),
        ('{"vendor_id": "10ee", "use": "auto"}', "fpga"),
        (WHOLE % ("product_id", "5005"), "passthrough"),
        (WHOLE % ("vendor_id", "10ee"), "passthrough"),
        # A reset of one of its two functions is refused by the kernel.
        ('{"vendor_id": "10ee", "use": "passthrough"}', ""),
        ('{"vendor_id": "10ee", "use": "vf"}', ""),
        ('{"address": "0000:d8:00.0", "use": "off"}', ""),
        ('{"address": "0000:d8:00.1", "use": "off"}', ""),
    ],
)
def test_policy_says_what_a_card_is_for(
    tmp_path: pathlib.Path, line: str, technology: str
) -> None:
    manager, user = u250(driver=None)
    manager["driver"] = None if "passthrough" in line else "xclmgmt"
    state = read(tmp_path, [manager, user], line)
    assert {d.technology for d in state.devices} == (
        {technology} if technology else set()
    )


@pytest.mark.parametrize("named", ["0000:d8:00.0", "0000:d8:00.1"])
def test_policy_names_what_is_loaded_after_each_server(
    tmp_path: pathlib.Path, named: str
) -> None:
    line = f'{{"address": "{named}", "use": "fpga", "blank": "/etc/b.xclbin"}}'
    assert (
        region_of(read(tmp_path, u250(), line), U250).blank == "/etc/b.xclbin"
    )


def test_cards_of_another_driver_are_not_described(
    tmp_path: pathlib.Path,
) -> None:
    build.build({"functions": u250()}, tmp_path)
    devices = alveo_driver.AlveoDriver().describe(
        host_reader.HostReader(tmp_path),
        policy.DeviceRules(),
        frozenset({U250_USER}),
    )
    assert list(devices) == []


BITSTREAM = model.Bitstream(
    name="image",
    vendor="xilinx",
    path="/var/lib/nova/one",
    function=FUNCTION,
    interface=INTERFACE,
    sha512="0" * 128,
    size=9,
)


def build_claim(state: model.HostState) -> model.Claim:
    part = region(state, U250)
    return model.Claim(
        consumer="c",
        provider="p",
        device=part.address,
        profile="region",
        slot=part.slots[0],
        parent=part.slots[0],
        handle=part.slots[0],
        technology=part.technology,
        plugin=part.plugin,
        region=part.region,
    )


def test_without_a_bitstream_nothing_is_done(state: model.HostState) -> None:
    driver, claim = alveo_driver.AlveoDriver(), build_claim(state)
    assert driver.plan_prepare(claim) == ()
    assert driver.plan_release(claim) == ()
    bare = dataclasses.replace(claim, region=None, bitstream=BITSTREAM)
    assert driver.plan_prepare(bare) == ()


def test_a_bitstream_is_loaded_through_the_hosts_driver(
    state: model.HostState, tmp_path: pathlib.Path
) -> None:
    driver = alveo_driver.AlveoDriver()
    claim = dataclasses.replace(build_claim(state), bitstream=BITSTREAM)
    assert driver.plan_prepare(claim) == (
        actions.BindDriver(function=U250_USER, driver="xocl"),
        actions.ProgramRegion(
            card=U250,
            number=0,
            slot=U250_USER,
            bitstream=BITSTREAM,
            tool=xrt.TOOL,
        ),
    )
    assert driver.plan_release(claim) == driver.plan_prepare(claim)
    host = host_reader.HostReader(tmp_path)
    assert driver.plan_arrange(host, policy.DeviceRules()) == ()
