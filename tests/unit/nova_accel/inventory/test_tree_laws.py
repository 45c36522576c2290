# SPDX-License-Identifier: Apache-2.0
"""The tree of any host keeps its laws, also of a broken host."""

import os
import pathlib
import random
import re

import os_resource_classes
import os_traits
import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from tests.hosts import build, look
from tests.support import examples, strategies

NAME = re.compile(r"[A-Z0-9_]{1,255}")
CLASSES = frozenset(os_resource_classes.STANDARDS)
TRAITS = frozenset(os_traits.get_traits())
# Attributes, and links of devices, that a reading rests on.
READ = re.compile(
    r"vendor|device|class|subsystem_\w+|numa_node|boot_vga|driver|physfn"
    r"|virtfn\d+|iommu_group|sriov_\w+|reset_method|name|description"
    r"|available_instances|device_api|mdev_type|\w+_vgpu_types?|placement_id"
    r"|gpu_instance_id|\w+_quota|[0-9a-f:.]+|[0-9a-f-]{36}"
)
ODD = (
    "",
    "garbage\n",
    "-1\n",
    "0\n",
    "3\n",
    "65535\n",
    "40000000000\n",
    "0xffff\n",
    "NVIDIA A40-8Q\n",
    "framebuffer=999999999999M, max_instance=99999999\n",
)


def check_device(device: model.Device, node: providers.ProviderNode) -> None:
    for name, record in node.inventories.items():
        assert NAME.fullmatch(name)
        assert name.startswith("CUSTOM_") or name in CLASSES
        assert 0 <= record.reserved <= record.total <= 0x7FFFFFFF
    for trait in node.traits:
        assert NAME.fullmatch(trait)
        assert trait.startswith("CUSTOM_") or trait in TRAITS
    slots = node.inventories.get(device.resource_class)
    # The total covers all partitions and never exceeds the slots.
    assert len(device.partitions) <= (slots.total if slots else 0)
    assert (slots.total if slots else 0) <= len(device.slots)
    assert len(set(device.slots)) == len(device.slots) <= 0xFFFF
    if device.technology != "mdev":
        assert {p.handle for p in device.partitions} <= {*device.slots}
    for profile in device.profiles:
        is_made = profile.available > 0 and not device.fault
        assert (profile.trait in node.traits) is is_made
        for name, amount in profile.charges.items():
            record = node.inventories.get(name, providers.Inventory(total=0))
            free = record.total - record.reserved
            assert 0 < amount
            assert device.fault or profile.available * amount <= free


def check(root: pathlib.Path) -> None:
    state = look.read(root)
    tree = tree_builder.build_tree(
        strategies.ROOT, state, policy.DeviceRules()
    )
    assert len({n.name for n in tree.nodes}) == len(state.devices)
    for device in state.devices:
        node = tree.node(
            names.provider_uuid(strategies.ROOT_UUID, device.address)
        )
        assert node is not None
        check_device(device, node)
    # A driver that gives up on a file would hide all devices of its kind.
    assert [p for p in state.problems if p.where.startswith("driver ")] == []
    assert len(set(state.problems)) == len(state.problems)


@pytest.mark.parametrize("name", look.NAMES)
def test_the_tree_of_each_host_is_valid_in_placement(
    tmp_path: pathlib.Path, name: str
) -> None:
    check(look.make(name, tmp_path))


@pytest.mark.parametrize("name", examples.share(look.NAMES))
def test_the_tree_of_a_host_with_faults_is_valid_in_placement(
    tmp_path: pathlib.Path, name: str
) -> None:
    whole = look.make(name, tmp_path / "whole") / "sys"
    dice = random.Random(name)  # noqa: S311 - the same hosts every time
    places = sorted(
        os.path.relpath(os.path.join(top, entry), whole)
        for top, below, files in os.walk(whole)
        for entry in (*below, *files)
        if READ.fullmatch(entry)
        and (entry in files or os.path.islink(os.path.join(top, entry)))
    )
    faults: list[str | dict[str, str]] = [*ODD]
    faults += [{"fault": f} for f in ("EIO", "dangling", "missing", "junk")]
    for turn in range(6 if places else 0):
        broken = look.make(name, tmp_path / str(turn))
        for place in dice.sample(places, min(3, len(places))):
            build.break_path(broken, place, dice.choice(faults))
        check(broken)
