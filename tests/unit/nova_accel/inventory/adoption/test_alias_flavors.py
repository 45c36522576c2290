# SPDX-License-Identifier: Apache-2.0
"""Flavors with PCI aliases, rewritten to profiles and back."""

from collections.abc import Mapping

import pytest

from nova_accel.config.lines import native_flavors as lines
from nova_accel.inventory.adoption import alias_flavors, profile_requests

GPU = profile_requests.ProfileRequest(trait="CUSTOM_GPU", charges={"PGPU": 1})
FUNCTION = alias_flavors.NovaFunction(
    address="0000:71:00.0",
    vendor_id="10de",
    product_id="1e07",
    kind="type-PCI",
    resource_class="CUSTOM_PCI_10DE_1E07",
)
KEY = "pci_passthrough:alias"


def group(suffix: str) -> dict[str, str]:
    return {
        f"resources{suffix}:PGPU": "1",
        f"trait{suffix}:CUSTOM_GPU": "required",
    }


@pytest.mark.parametrize(
    ("before", "used", "after"),
    [
        ({KEY: "gpu:1"}, 1, group("_GPU")),
        (
            {KEY: "gpu:2,nic:1", "hw:cpu_policy": "shared"},
            2,
            {KEY: "nic:1", "hw:cpu_policy": "shared", "group_policy": "none"}
            | group("_GPU")
            | group("_GPU2"),
        ),
        (
            {KEY: "gpu:1", "resources_GPU:CUSTOM_FOO": "1"},
            1,
            {"resources_GPU:CUSTOM_FOO": "1", "group_policy": "none"}
            | group("_GPU2"),
        ),
        (
            {KEY: " gpu:2", "group_policy": "isolate"},
            1,
            {KEY: "gpu:1", "group_policy": "isolate"} | group("_GPU"),
        ),
    ],
    ids=["one", "two and another alias", "taken name", "a part"],
)
def test_aliases_become_profiles(
    before: dict[str, str], used: int, after: dict[str, str]
) -> None:
    requests = [GPU] * used
    assert alias_flavors.rewrite(before, ["gpu"] * used, requests) == after


@pytest.mark.parametrize(
    "before",
    [
        {KEY: "gpu:1"},
        {KEY: "gpu:3,nic:1", "hw:cpu_policy": "shared"},
    ],
)
def test_profiles_become_the_aliases_that_they_were(
    before: Mapping[str, str],
) -> None:
    count = lines.parse_aliases(before).count("gpu")
    after = alias_flavors.rewrite(before, ["gpu"] * count, [GPU] * count)
    restored = alias_flavors.restore(after, {"CUSTOM_GPU": "gpu"})
    assert sorted(lines.parse_aliases(restored)) == sorted(
        lines.parse_aliases(before)
    )
    others = {k: v for k, v in before.items() if k != KEY}
    assert {k: v for k, v in restored.items() if k != KEY} == others


@pytest.mark.parametrize(
    ("fields", "is_match"),
    [
        ({"vendor_id": "10de", "product_id": "1e07"}, True),
        ({"vendor_id": "10de", "product_id": "2330"}, False),
        ({"kind": "type-PF"}, False),
        ({"resource_class": "pci-10de-1e07"}, True),
        ({"resource_class": "CUSTOM_GOLD"}, False),
    ],
)
def test_an_alias_matches_as_in_nova(
    fields: dict[str, str], is_match: bool
) -> None:
    alias = alias_flavors.Alias(name="gpu", **fields)
    assert alias.matches(FUNCTION) is is_match


def test_each_function_gets_an_alias_of_its_own() -> None:
    """The first alias is for both; the other function needs it."""
    any_gpu = alias_flavors.Alias(name="any", vendor_id="10de")
    small = alias_flavors.Alias(name="small", product_id="1e07")
    other = alias_flavors.NovaFunction(
        address="0000:72:00.0",
        vendor_id="10de",
        product_id="2330",
        kind="type-PCI",
    )
    assert alias_flavors.assign(
        ("any", "small"), [FUNCTION, other], [any_gpu, small]
    ) == {FUNCTION.address: "small", other.address: "any"}


def test_a_function_that_no_alias_requested_is_named() -> None:
    with pytest.raises(ValueError, match=FUNCTION.address):
        alias_flavors.assign(("gpu",), [FUNCTION], [])


def test_a_count_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="many"):
        lines.parse_aliases({KEY: "gpu:many"})
