# SPDX-License-Identifier: Apache-2.0
"""Providers that count as those of Nova's own vGPU support."""

from pathlib import Path

import pytest
from nova.compute import provider_tree
from oslo_config import cfg

from nova_accel.model import names, providers
from virt_hooks.report import native_providers

ROOT = providers.ProviderRoot(
    name="node1", uuid="6d7b3c9a-7a2b-4d6f-9a55-000000000001"
)
NAME = "node1_pci_0000_3b_00_0"
CLASSES = frozenset({"VGPU", "CUSTOM_BIG"})


def make_tree(
    *classes: str, traits: tuple[str, ...] = (), parent: str = ROOT.name
) -> provider_tree.ProviderTree:
    """Return Nova's tree with one provider below another."""
    tree = provider_tree.ProviderTree()
    tree.new_root(ROOT.name, ROOT.uuid)
    if parent != ROOT.name:
        tree.new_child(parent, ROOT.name)
    tree.new_child(NAME, parent)
    tree.update_inventory(NAME, {name: {"total": 4} for name in classes})
    tree.update_traits(NAME, traits)
    return tree


@pytest.mark.parametrize(
    ("classes", "traits", "is_native"),
    [
        (("VGPU",), (), True),
        (("CUSTOM_BIG",), (), True),
        (("CUSTOM_OTHER",), (), False),
        (("CUSTOM_OTHER",), (names.NOVA_OWNER_TRAIT,), True),
        (("VGPU",), (names.NOVA_OWNER_TRAIT, "CUSTOM_MINE"), True),
        (("VGPU",), ("COMPUTE_MANAGED_PCI_DEVICE",), False),
        (("VGPU",), (names.OWNER_TRAIT,), False),
        (("VGPU", "CUSTOM_BIG"), (), False),
        (("PGPU",), (), False),
        (("PGPU",), (names.NOVA_OWNER_TRAIT,), False),
        ((), (), False),
    ],
)
def test_class_and_traits_decide(
    classes: tuple[str, ...], traits: tuple[str, ...], is_native: bool
) -> None:
    tree = make_tree(*classes, traits=traits)
    result = native_providers.is_native(tree, NAME, ROOT, CLASSES)
    assert result is is_native


def test_it_is_a_child_of_the_node_without_children() -> None:
    tree = make_tree("VGPU", parent="numa0")
    assert not native_providers.is_native(tree, NAME, ROOT, CLASSES)
    tree = make_tree("VGPU")
    tree.new_child("below", NAME)
    assert not native_providers.is_native(tree, NAME, ROOT, CLASSES)


def test_classes_of_former_types_are_read_from_the_files(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nova.conf"
    path.write_text(
        "[devices]\nenabled_mdev_types =\n"
        "[mdev_nvidia-35]\nmdev_class = CUSTOM_BIG\n"
        "[mdev_nvidia-36]\ndevice_addresses = 0000:3b:00.0\n"
        "[other]\nmdev_class = CUSTOM_OTHER\n"
    )
    options = cfg.ConfigOpts()
    options([], default_config_files=[str(path)], default_config_dirs=[])
    assert native_providers.read_mdev_classes(options) == CLASSES
