# SPDX-License-Identifier: Apache-2.0
"""Proves that the driver describes hosts and keeps the rules."""

import pathlib

import pytest
import simulated
from acme_lattice import driver

from nova_accel import conformance, model
from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import actions

RULES = '{"address": "0000:5a:00.0", "use": "vf", "num_vfs": %d}'


def read(root: pathlib.Path, *lines: str) -> model.HostState:
    """Return the host state that discovery builds."""
    return scan.read(
        host_reader.HostReader(root),
        {"lattice": driver.LatticeDriver()},
        policy.parse_rules(lines),
    )


@pytest.mark.parametrize("vfs", [0, 1, 4])
def test_the_driver_passes_the_conformance_suite(
    tmp_path: pathlib.Path, vfs: int
) -> None:
    simulated.make(tmp_path, vfs)
    findings = conformance.check_driver(
        driver.LatticeDriver(), fs.DiskSource(tmp_path), name="lattice"
    )
    assert not findings, "\n".join(map(str, findings))


def test_a_card_is_one_device(tmp_path: pathlib.Path) -> None:
    simulated.make(tmp_path)
    (card,) = read(tmp_path).devices
    assert card.counters == {
        "CUSTOM_LATTICE_VF": 4,
        "CUSTOM_LATTICE_MEMORY_MB": 8192,
    }
    assert [p.name for p in card.profiles] == ["LX100-2048M"]
    assert "CUSTOM_ACCELERATOR_LATTICE_FIRMWARE_2_1_0" in card.traits


def test_a_card_without_readable_memory_is_not_withdrawn(
    tmp_path: pathlib.Path,
) -> None:
    """Unknown is not absent: VFs in use stay, no profile is offered."""
    simulated.make(tmp_path)
    place = tmp_path / "sys/bus/pci/devices" / simulated.CARD
    (place / "lattice/vf_memory_mb").unlink()
    state = read(tmp_path)
    (card,) = state.devices
    assert card.counters == {"CUSTOM_LATTICE_VF": 4}
    assert not card.profiles
    assert [p.where for p in state.problems] == [simulated.CARD]


def test_policy_sets_the_number_of_vfs(tmp_path: pathlib.Path) -> None:
    simulated.make(tmp_path, 0)
    host = host_reader.HostReader(tmp_path)
    rules = policy.parse_rules([RULES % 8])
    assert driver.LatticeDriver().plan_arrange(host, rules) == (
        actions.SetVfCount(function=simulated.CARD, count=8, is_probed=False),
    )
    assert not driver.LatticeDriver().plan_arrange(host, policy.DeviceRules())
