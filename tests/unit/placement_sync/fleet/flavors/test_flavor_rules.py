# SPDX-License-Identifier: Apache-2.0
"""Flavors whose guests can start on no host."""

import pytest

from nova_accel.catalog import loader
from placement_sync.fleet.flavors import (
    flavor_rules,
    flavor_specs,
    offered_devices,
)

TYPES = offered_devices.VgpuTypes(loader.load())


def explain(*profiles: str, **specs: str) -> str:
    """Return the contradiction of a flavor with one group per profile."""
    for number, profile in enumerate(profiles):
        specs[f"resources_G{number}:VGPU"] = "1"
        specs[f"trait_G{number}:CUSTOM_VGPU_NVIDIA_{profile}"] = "required"
    return flavor_rules.explain_contradiction(flavor_specs.read(specs), TYPES)


@pytest.mark.parametrize(
    ("profiles", "cause"),
    [
        (["A40_8Q", "A40_8C"], "one series (C, Q)"),
        (["A40_8Q", "A100_8Q"], "one model of card"),
        (["A40_1Q"] * 17, "at most 16"),
    ],
)
def test_nvidia_vgpus_of_one_server_are_limited(
    profiles: list[str], cause: str
) -> None:
    assert cause in explain(*profiles)


def test_sizes_of_one_series_may_differ() -> None:
    assert explain("A40_8Q", "A40_16Q") == ""


def test_a_console_needs_a_vgpu() -> None:
    display = {"accelerator:display": "on"}
    qat = {"resources_Q1:CUSTOM_QAT_VF": "1"}
    assert "console" in explain(**display, **qat)
    assert explain("A40_8Q", **display, **qat) == ""
    assert explain(**qat) == ""


def test_a_flavor_without_a_licence_is_refused() -> None:
    specs = {
        "resources_GPU1:VGPU": "1",
        "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
    }
    contents = flavor_specs.read(specs)
    assert flavor_rules.explain_license(contents, frozenset("QB")) == ""
    assert flavor_rules.explain_license(contents, frozenset()) == ""
    reason = flavor_rules.explain_license(contents, frozenset("C"))
    assert "A40-8Q needs a licence of series Q" in reason
    assert "licensed_series = C" in reason
