# SPDX-License-Identifier: Apache-2.0
"""Profile names and traits are converted into each other."""

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.catalog import loader, mdev_names
from nova_accel.model import names
from placement_sync.fleet.flavors import offered_devices
from tests.hosts import look
from tests.support import examples

TYPES = offered_devices.VgpuTypes(loader.load())

NVIDIA_DESCRIPTION = (
    "num_heads=4, frl_config=60, framebuffer=1024M,"
    " max_resolution=5120x2880, max_instance=16\n"
)
INTEL_DESCRIPTION = (
    "low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\n"
    "resolution: 1920x1200\nweight: 4\n"
)


def test_nvidias_description_has_memory_and_limit() -> None:
    assert mdev_names.parse_description(
        NVIDIA_DESCRIPTION
    ) == mdev_names.TypeDescription(memory_mb=1024, max_instances=16)


def test_intels_description_has_the_aperture() -> None:
    assert mdev_names.parse_description(
        INTEL_DESCRIPTION
    ) == mdev_names.TypeDescription(memory_mb=128)


@pytest.mark.parametrize(
    "text", ["", "\n", "framebuffer=lots, max_instance=some", "a=b", ":::"]
)
def test_a_description_without_facts_has_no_values(text: str) -> None:
    assert mdev_names.parse_description(text) == mdev_names.TypeDescription()


@given(st.text())
def test_any_text_is_accepted_as_a_description(text: str) -> None:
    facts = mdev_names.parse_description(text)
    assert facts.memory_mb is None or facts.memory_mb >= 0
    assert facts.max_instances is None or facts.max_instances >= 0


@pytest.mark.parametrize(
    ("type_id", "label", "vendor", "name"),
    [
        ("nvidia-222", "GRID T4-1B", "10de", "T4-1B"),
        ("nvidia-555", "NVIDIA A40-1B", "10de", "A40-1B"),
        ("vfio-pci-555", "NVIDIA A40-1B\n", "10de", "A40-1B"),
        ("nvidia-222", None, "10de", "nvidia-222"),
        ("i915-GVTg_V5_4", None, "8086", "i915-GVTg_V5_4"),
        ("mtty-2", "Dual port serial", "", "mtty-2"),
    ],
)
def test_a_profiles_name_is_the_same_in_every_driver_release(
    type_id: str, label: str | None, vendor: str, name: str
) -> None:
    assert mdev_names.profile_name(type_id, label, vendor) == name


@pytest.mark.parametrize(
    ("type_names", "model"),
    [
        (["T4-1Q", "T4-16C", "T4-2B4"], "T4"),
        (["A100-4C", "A100-1-5C", "A100-1-5CME"], "A100"),
        (["RTX6000-1Q", "RTX6000-24A"], "RTX6000"),
        (["T4-1Q", "A40-1Q"], "10de:1eb8"),
        (["unlike any"], "10de:1eb8"),
        ([], "10de:1eb8"),
    ],
)
def test_a_cards_model_is_the_common_stem_of_its_profiles(
    type_names: list[str], model: str
) -> None:
    assert mdev_names.model_name(type_names, "10de:1eb8") == model


@pytest.mark.parametrize(
    ("name", "size", "instance"),
    [
        ("T4-2B4", 2048, ""),
        ("A40-48Q", 49152, ""),
        ("A100-1-5CME", 5120, "1g.5gb+me"),
        ("RTX Pro 6000 Blackwell DC-4-96QGFX", 98304, "4g.96gb+gfx"),
        ("Peculiar", None, ""),
        ("H100-1", None, ""),
    ],
)
def test_nvidias_names_contain_size_and_instance(
    name: str, size: int | None, instance: str
) -> None:
    assert mdev_names.parse_size(name) == size
    assert mdev_names.parse_instance_kind(name) == instance


# Invented labels without a size: of these a trait has the letters only.
PECULIAR = {"Peculiar"}


@pytest.mark.parametrize("host", examples.share(look.NAMES))
def test_a_trait_is_converted_to_the_drivers_name(
    host: str, tmp_path: pathlib.Path
) -> None:
    for device in look.read(look.make(host, tmp_path / "host")).devices:
        for profile in device.profiles:
            name = mdev_names.name_from_trait(profile.trait)
            if profile.name in PECULIAR:
                name = name.capitalize()
            vgpu_type = TYPES.find(profile.trait)
            assert profile.name == (vgpu_type.name if vgpu_type else name)


@pytest.mark.parametrize("host", examples.share(look.NAMES))
def test_each_spelling_selects_the_profile(
    host: str, tmp_path: pathlib.Path
) -> None:
    devices = look.read(look.make(host, tmp_path / "host")).devices
    every = {
        profile.name: profile
        for device in devices
        for profile in device.profiles
    }
    for name, profile in every.items():
        bare = profile.trait.removeprefix(names.CUSTOM)
        for text in (
            *(name, name.lower(), name.upper(), f"GRID {name}"),
            *(f"nvidia  {name}", profile.trait, profile.trait.lower(), bare),
            *(bare.lower(), mdev_names.strip_trait_prefix(profile.trait)),
        ):
            selected = {
                n for n in every if mdev_names.is_profile_name(text, n)
            }
            assert selected == {name}, text


@pytest.mark.parametrize(
    "text", ["", "4Q", "4Q8", "T4-8Q", "CUSTOM_VGPU_NVIDIA_T4_4", "GRID"]
)
def test_an_incomplete_name_selects_nothing(text: str) -> None:
    assert not mdev_names.is_profile_name(text, "T4-4Q")


@given(st.text())
def test_any_text_is_accepted_as_a_spelling(text: str) -> None:
    assert not mdev_names.is_profile_name(text, "A100-1-5CME") or "5" in text


def test_series_of_one_size_are_listed() -> None:
    assert set(mdev_names.list_series_names("A100-1-5CME")) == {
        "A100-1-5QME",
        "A100-1-5AME",
        "A100-1-5BME",
    }
    assert not tuple(mdev_names.list_series_names("Peculiar"))
