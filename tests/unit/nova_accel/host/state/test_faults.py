# SPDX-License-Identifier: Apache-2.0
"""Faults are stored, applied to devices, and healed."""

import os
import pathlib

import pytest

from nova_accel import model
from nova_accel.cli import commands
from nova_accel.config import policy
from nova_accel.discovery import nova_conf
from nova_accel.host.state import device_notes
from nova_accel.inventory import conditions, tree_builder
from nova_accel.model import names, providers
from placement_sync.sync import diff
from tests.support.fpga import card as fpga
from tests.support.placement import applied_plans


@pytest.fixture
def notes(tmp_path: pathlib.Path) -> device_notes.FaultNotes:
    return device_notes.FaultNotes(str(tmp_path / "state"))


def node(host: model.HostState) -> providers.ProviderNode:
    tree = tree_builder.build_tree(fpga.ROOT, host, policy.DeviceRules())
    provider = tree.node(fpga.PROVIDER)
    assert provider is not None
    return provider


def test_a_fault_survives_a_restart(notes: device_notes.FaultNotes) -> None:
    notes.put(fpga.REGION, "it failed", fpga.OLD)
    again = device_notes.FaultNotes(os.path.dirname(notes.path)).read()
    assert again.keys() == {fpga.REGION}
    fault = again[fpga.REGION]
    assert (fault.reason, fault.function) == ("it failed", fpga.OLD)
    assert fault.when


def test_a_faulted_region_is_reserved_and_marked(
    notes: device_notes.FaultNotes,
) -> None:
    notes.put(fpga.REGION, "it failed", fpga.OLD)
    marked, healed = conditions.mark_faults(fpga.host(), notes.read())
    assert not healed
    provider = node(marked)
    assert provider.inventories[names.FPGA_CLASS].reserved == 1
    assert names.FAULTED_TRAIT in provider.traits
    assert names.REGION_TRAIT not in provider.traits
    (problem,) = marked.problems
    assert f"nova-accel heal {fpga.REGION}" in problem.reason


def test_other_devices_are_not_marked() -> None:
    fault = model.Fault(address="0000:99:00.0", reason="gone")
    marked, healed = conditions.mark_faults(
        fpga.host(), {fault.address: fault}
    )
    assert marked == fpga.host()
    assert not healed


@pytest.mark.parametrize(
    ("then", "now", "is_healed"),
    [
        (fpga.OLD, fpga.OLD, False),
        (fpga.OLD, fpga.NEW, True),
        (fpga.OLD, None, False),
        (None, fpga.NEW, False),
        ("", fpga.NEW, True),
    ],
)
def test_a_region_with_another_function_is_healed(
    then: str | None, now: str | None, is_healed: bool
) -> None:
    fault = model.Fault(address=fpga.REGION, reason="x", function=then)
    marked, healed = conditions.mark_faults(
        fpga.host(fpga.region(now)), {fault.address: fault}
    )
    assert healed == ({fpga.REGION} if is_healed else set())
    device = marked.device(fpga.REGION)
    assert device is not None
    assert bool(device.fault) is not is_healed


# -- the tree ---------------------------------------------------------------


def test_the_provider_of_a_region_is_below_its_card() -> None:
    tree = tree_builder.build_tree(
        fpga.ROOT, fpga.host(), policy.DeviceRules()
    )
    card, region = tree.nodes
    assert (card.parent, card.inventories) == (fpga.ROOT.uuid, {})
    assert region.parent == card.uuid
    assert region.name == "node1_accel_0000_5e_00_0_region_0"
    assert region.slots == {names.FPGA_CLASS: frozenset({fpga.CARD})}
    empty = providers.ProviderTree(root=fpga.ROOT)
    plan = diff.plan(empty, tree, diff.Guard())
    assert applied_plans.apply(empty, plan).nodes[1].parent == card.uuid


def test_a_device_spec_line_of_a_card_applies_to_its_region() -> None:
    rules = policy.parse_rules([f'{{"address": "{fpga.CARD}"}}'])
    assert rules.of(fpga.region()) is rules.rules[0]
    assert rules.of(fpga.card()) is rules.rules[0]


def test_traits_of_a_region_in_use_stay() -> None:
    """The host can't read the function while a guest has the card."""
    before = tree_builder.build_tree(
        fpga.ROOT, fpga.host(), policy.DeviceRules()
    )
    hidden = fpga.host(fpga.region(None))
    in_use = tree_builder.build_tree(
        fpga.ROOT,
        hidden,
        policy.DeviceRules(),
        occupied=frozenset({fpga.CARD}),
    )
    plan = diff.plan(before, in_use, diff.Guard())
    after = applied_plans.apply(before, plan)
    node = after.node(fpga.PROVIDER)
    assert node is not None
    assert names.fpga_function_trait(fpga.OLD) in node.traits
    assert names.interface_trait(fpga.INTERFACE) in node.traits
    idle = tree_builder.build_tree(fpga.ROOT, hidden, policy.DeviceRules())
    later = applied_plans.apply(after, diff.plan(after, idle, diff.Guard()))
    node = later.node(fpga.PROVIDER)
    assert node is not None
    assert names.fpga_function_trait(fpga.OLD) not in node.traits


# -- the command ------------------------------------------------------------


def heal(notes: device_notes.FaultNotes, *arguments: str) -> int:
    place = os.path.dirname(notes.path)
    return commands.main(["heal", *arguments, "--state-dir", place])


def test_heal_reads_the_nova_conf_of_this_machine(
    notes: device_notes.FaultNotes,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "nova.conf"
    state_dir = os.path.dirname(notes.path)
    path.write_text(f"[nova_accel]\nstate_dir = {state_dir}\n")
    monkeypatch.setattr(nova_conf, "CONFIG_FILES", (str(path), "/none"))
    notes.put(fpga.REGION, "it failed", None)
    assert commands.main(["heal"]) == 0
    assert f"{fpga.REGION}  since 2" in capsys.readouterr().out


def test_regions_of_an_unreadable_card_stay() -> None:
    before = tree_builder.build_tree(
        fpga.ROOT, fpga.host(), policy.DeviceRules()
    )
    card = names.provider_uuid(fpga.ROOT.uuid, fpga.CARD)
    nothing = providers.ProviderTree(root=fpga.ROOT)
    guard = diff.Guard(unknown=frozenset({card}))
    assert diff.plan(before, nothing, guard) == []


def test_a_note_written_later_can_be_healed(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "faulted").write_text("no directory")
    notes = device_notes.FaultNotes(str(tmp_path))
    notes.put(fpga.REGION, "first", None)
    (tmp_path / "faulted").unlink()
    notes.put(fpga.REGION, "second", None)
    assert device_notes.FaultNotes(str(tmp_path)).heal([fpga.REGION])
    assert notes.read() == {}
