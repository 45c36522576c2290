# SPDX-License-Identifier: Apache-2.0
"""Manifests of the Ansible roles: recorded changes are undone exactly."""

import os
import pathlib

import hypothesis
import pytest
from hypothesis import strategies

from nova_accel.doctor.ansible import manifests
from tests.unit.contrib import collection

manifest_file = collection.load_module("manifest_file")
safe_files = collection.load_module("safe_files")
TEXTS = strategies.text(
    strategies.sampled_from("ab= \n\t#[]"), max_size=30
).filter(lambda text: "\r" not in text)


@hypothesis.given(TEXTS, TEXTS)
def test_a_block_is_removed_exactly(text: str, block: str) -> None:
    added = manifest_file.set_block(text, "qat", block)
    assert manifest_file.remove_blocks(added, "qat") == text


@hypothesis.given(TEXTS, TEXTS, TEXTS)
def test_a_block_is_replaced(text: str, first: str, second: str) -> None:
    once = manifest_file.set_block(text, "qat", second)
    twice = manifest_file.set_block(
        manifest_file.set_block(text, "qat", first), "qat", second
    )
    assert once == twice


@hypothesis.given(TEXTS, TEXTS, TEXTS)
def test_two_blocks_of_a_role_are_removed(
    text: str, first: str, second: str
) -> None:
    once = manifest_file.set_block(text, "qat", first, "compute")
    twice = manifest_file.set_block(once, "qat", second, "scheduler")
    assert twice.startswith(once)
    # The same block again does not change its place.
    assert manifest_file.set_block(twice, "qat", first, "compute") == twice
    assert manifest_file.remove_blocks(twice, "qat") == text


@hypothesis.given(TEXTS)
def test_disabled_lines_are_restored(text: str) -> None:
    disabled = manifest_file.disable_lines(text, "qat", "a")
    assert manifest_file.enable_lines(disabled, "qat") == text
    assert not any(line.startswith("a") for line in disabled.splitlines())


@hypothesis.given(TEXTS, TEXTS)
def test_the_block_of_the_role_is_not_disabled(text: str, block: str) -> None:
    disabled = manifest_file.disable_lines(text, "qat", "a")
    added = manifest_file.set_block(disabled, "qat", block)
    assert manifest_file.disable_lines(added, "qat", "a") == added


def test_continuation_lines_are_disabled_too() -> None:
    text = "types = x,\n  y\nother = 1\n"
    disabled = manifest_file.disable_lines(text, "nova_accel", "types")
    mark = "# nova-accel nova_accel: "
    assert disabled == f"{mark}types = x,\n{mark}  y\nother = 1\n"


def test_a_block_of_another_role_stays() -> None:
    text = manifest_file.set_block("", "xrt", "x")
    assert manifest_file.remove_blocks(text, "qat") == text


def test_a_diff_has_no_lines_but_the_changed_ones() -> None:
    before = "transport_url = rabbit://nova:secret@bus\ncompute_driver = x\n"
    after = manifest_file.disable_lines(before, "nova_accel", "compute_driver")
    diff = manifest_file.build_diff("/etc/nova/nova.conf", before, after)
    assert "secret" not in diff["prepared"]
    assert "\n-compute_driver = x\n" in diff["prepared"]


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "state" / "drivers"


def record(place: pathlib.Path, path: pathlib.Path, text: str) -> None:
    """Record and write a file, as the module ``recorded_file`` does."""
    manifest = manifest_file.Manifest(str(place), "qat")
    before = manifest_file.read_text(str(path))
    manifest.record_file(str(path), before, 0o644, text)
    manifest.save()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def plan(place: pathlib.Path) -> list[tuple[str, str | None, int]]:
    manifest = manifest_file.Manifest(str(place), "qat")
    changes: list[tuple[str, str | None, int]] = manifest.plan_restore(
        safe_files.read
    )
    return changes


def test_a_new_file_is_removed(
    tmp_path: pathlib.Path, place: pathlib.Path
) -> None:
    record(place, tmp_path / "a.conf", "x\n")
    assert plan(place) == [(str(tmp_path / "a.conf"), None, 0o644)]


def test_the_first_text_is_restored(
    tmp_path: pathlib.Path, place: pathlib.Path
) -> None:
    path = tmp_path / "a.conf"
    path.write_text("before\n")
    record(place, path, "x\n")
    record(place, path, "y\n")
    assert plan(place) == [(str(path), "before\n", 0o644)]


def test_a_change_that_was_not_made_is_not_undone(
    tmp_path: pathlib.Path, place: pathlib.Path
) -> None:
    path = tmp_path / "a.conf"
    manifest = manifest_file.Manifest(str(place), "qat")
    manifest.record_file(str(path), None, 0o644, "x\n")
    manifest.save()
    assert plan(place) == []


def test_a_file_that_others_changed_is_refused(
    tmp_path: pathlib.Path, place: pathlib.Path
) -> None:
    path = tmp_path / "a.conf"
    record(place, path, "x\n")
    path.write_text("x\ny\n")
    with pytest.raises(manifest_file.ManifestError, match="was changed"):
        plan(place)


def test_created_directories_are_removed(
    tmp_path: pathlib.Path, place: pathlib.Path
) -> None:
    path = tmp_path / "etc" / "grub.d" / "a.cfg"
    record(place, path, "x\n")
    manifest = manifest_file.Manifest(str(place), "qat")
    path.unlink()
    manifest.remove_directories()
    manifest.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}'])
def test_a_damaged_manifest_is_refused(place: pathlib.Path, text: str) -> None:
    place.mkdir(parents=True)
    (place / "qat.json").write_text(text)
    with pytest.raises(manifest_file.ManifestError, match=r"qat\.json"):
        manifest_file.Manifest(str(place), "qat")


@pytest.mark.parametrize("role", ["", "../qat", "QAT", "a/b"])
def test_a_name_that_is_no_role_is_refused(
    place: pathlib.Path, role: str
) -> None:
    with pytest.raises(manifest_file.ManifestError, match="no name"):
        manifest_file.Manifest(str(place), role)


def test_the_command_reads_manifests_of_roles(
    tmp_path: pathlib.Path, place: pathlib.Path
) -> None:
    record(place, tmp_path / "a.conf", "x\n")
    manifest = manifest_file.Manifest(str(place), "qat")
    manifest.data["packages"] = ["qatlib-service"]
    manifest.record_effects(["initramfs"])
    manifest.record_boot()
    manifest.save()
    ((role, state),) = manifests.read(str(place)).items()
    assert (role, state.packages) == ("qat", ("qatlib-service",))
    assert list(state.files) == [str(tmp_path / "a.conf")]
    assert state.is_interrupted
    assert state.is_reboot_pending(manifests.read_boot())
    assert not state.is_reboot_pending("another boot")
