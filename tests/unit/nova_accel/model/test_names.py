# SPDX-License-Identifier: Apache-2.0
"""Names fit Placement's rules; UUIDs depend only on address and slot."""

import re
import uuid

from hypothesis import assume, given
from hypothesis import strategies as st

from nova_accel.catalog import mdev_names
from nova_accel.model import names

# Placement's rule for names that are not in os-traits.
LEGAL = re.compile(r"CUSTOM_[A-Z0-9_]+")
ROOT = "1f2e3d4c-0000-4000-8000-000000000001"
words = st.text(min_size=1, max_size=300)
HEX = "0123456789abcdef"


@given(words, st.text(alphabet=HEX, min_size=4, max_size=4), st.booleans())
def test_profile_traits_are_valid_and_managed(
    name: str, vendor: str, gpu: bool
) -> None:
    assume(re.search(r"[A-Za-z0-9]", name))
    trait = mdev_names.profile_trait(name, vendor, gpu=gpu)
    assert LEGAL.fullmatch(trait)
    assert len(trait) <= names.MAX_NAME
    assert names.is_managed_trait(trait)


@given(
    st.text(alphabet=HEX, min_size=4, max_size=4),
    st.text(alphabet=HEX, min_size=4, max_size=4),
    st.none() | st.integers(0, 1023),
)
def test_identity_traits_are_valid_and_managed(
    vendor: str, product: str, node: int | None
) -> None:
    traits = names.identity_traits(vendor, product, node)
    assert all(
        LEGAL.fullmatch(t) and names.is_managed_trait(t) for t in traits
    )
    assert len(traits) == 2 + (node is not None)


def test_other_traits_are_not_managed() -> None:
    for trait in ("CUSTOM_RACK_7", "HW_GPU_API_VULKAN", "COMPUTE_NODE"):
        assert not names.is_managed_trait(trait)


@given(st.sets(words, min_size=2, max_size=2))
def test_ids_of_different_objects_differ(pair: set[str]) -> None:
    first, second = sorted(pair)
    assert names.provider_uuid(ROOT, first) != names.provider_uuid(
        ROOT, second
    )
    assert names.mdev_uuid(ROOT, first) != names.mdev_uuid(ROOT, second)


@given(words)
def test_ids_are_deterministic(slot: str) -> None:
    provider = names.provider_uuid(ROOT, "0000:41:00.0")
    assert uuid.UUID(names.mdev_uuid(provider, slot)).version == 5
    assert names.mdev_uuid(provider, slot) == names.mdev_uuid(provider, slot)


def test_a_providers_name_differs_from_novas_pci_providers() -> None:
    name = names.provider_name("node1", "0000:41:00.0")
    assert name == "node1_accel_0000_41_00_0"
    assert not name.startswith("node1_pci_")


def test_a_vendor_without_a_name_has_its_id() -> None:
    assert names.vendor_name("10de") == "nvidia"
    assert names.vendor_name("1234") == "1234"


@given(st.integers(0, 300))
def test_slot_names_are_unique(count: int) -> None:
    assert len(set(names.slot_names(count))) == count


@given(st.integers(0, 200), st.integers(0, 200))
def test_more_slots_keep_the_names_of_fewer(few: int, extra: int) -> None:
    both = names.slot_names(few + extra)
    assert both[:few] == names.slot_names(few)


@given(words, st.sampled_from(("0000:41:00.0", "0000:3b:00.1/region-2")))
def test_a_provider_names_its_compute_node(root: str, address: str) -> None:
    assert names.find_root_name(names.provider_name(root, address)) == root


@given(words, words)
def test_a_providers_name_shows_other_hosts(root: str, other: str) -> None:
    for address in ("0000:41:00.0", "mtty"):
        name = names.provider_name(root, address)
        assert not names.is_of_other_host(root, name)
        assert names.is_of_other_host(other, name) is (other != root)
    assert not names.is_of_other_host(root, "my-card")


def test_a_name_off_the_pci_bus_names_no_compute_node() -> None:
    for name in ("cn1_accel_mtty", "cn1_accel_x_accel_y", "cn1"):
        assert names.find_root_name(name) == ""
