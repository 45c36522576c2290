# SPDX-License-Identifier: Apache-2.0
"""Flavors whose guests can start on no host."""

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


def advise(bits: str, count: str = "8", **specs: str) -> str:
    """Return the advice for a flavor with 64 GiB of memory and H100."""
    specs |= {
        "resources_GPU1:PGPU": count,
        "trait_GPU1:CUSTOM_GPU_PCI_10DE_2330": "required",
        "hw:maxphysaddr_bits": bits,
    }
    return flavor_rules.advise_address_bits(
        flavor_specs.read(specs), specs, 64 << 10, TYPES
    )


EMULATED = {"hw:maxphysaddr_mode": "emulate"}


def test_a_flavor_with_too_few_address_bits_gets_advice() -> None:
    """The same bits that a host gives to a guest of eight H100."""
    assert advise("43", **EMULATED) == (
        "hw:maxphysaddr_bits is 43, and the BARs of 8 whole GPUs, up to"
        " 1024.25 GiB, need 44 with UEFI, 42 with BIOS: set it to 44, or"
        " remove hw:maxphysaddr_mode and hw:maxphysaddr_bits, so that each"
        " host chooses the bits"
    )
    assert advise("44", **EMULATED) == ""


def test_hosts_choose_the_address_bits_of_other_flavors() -> None:
    assert advise("40") == ""
    assert advise("40", **{"hw:maxphysaddr_mode": "passthrough"}) == ""
    assert advise("?", **EMULATED) == ""
    assert advise("40", count="0", **EMULATED) == ""
