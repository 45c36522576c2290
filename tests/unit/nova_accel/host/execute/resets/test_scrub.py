# SPDX-License-Identifier: Apache-2.0
"""Functions are reset and scrub commands run between two servers."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.claims import card_reset, scrub
from nova_accel.host.execute import privileged, reset_checks
from nova_accel.model import actions
from tests.lab import fakehost
from tests.support.hosts import executing
from tests.support.hosts.executing import (
    CARD,
    FLEX,
    FLEX_VF,
    executor,
    failure,
    path_of,
)
from tests.support.hosts.simulated_scrub import resets

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = executing.SPEC
COMMAND = "/opt/wipe"


def reset(function: str = CARD) -> actions.ResetFunction:
    return actions.ResetFunction(function=function)


def run(command: str = COMMAND, function: str = CARD) -> actions.RunScrub:
    return actions.RunScrub(command=command, function=function)


# -- reset ------------------------------------------------------------------


def test_a_function_is_reset_each_time(kernel: fakehost.Controller) -> None:
    before = executing.state(kernel)
    on_host = executor(kernel.root)
    assert [on_host.apply(reset()) for _ in range(2)] == [True, True]
    assert resets(kernel) == [CARD, CARD]
    assert executing.state(kernel) == before


def test_a_vf_whose_ids_read_as_ones_answers(
    kernel: fakehost.Controller,
) -> None:
    kernel.set_vfs(FLEX, 2)
    path = kernel.sys / path_of(FLEX_VF, "config")
    assert path.read_bytes()[:4] == b"\xff" * 4
    assert executor(kernel.root).apply(reset(FLEX_VF))
    assert resets(kernel) == [FLEX_VF]


@pytest.mark.parametrize("name", ["ENOTTY", "EIO", "EBUSY", "EAGAIN"])
def test_a_refused_reset_is_a_failure_of_an_answering_function(
    kernel: fakehost.Controller, name: str
) -> None:
    kernel.fail(path_of(CARD, "reset"), name)
    error = failure(kernel.root, reset())
    assert error.number == getattr(errno, name)
    assert reset_checks.is_answering(str(kernel.root), CARD)


def test_a_function_that_stays_silent_is_enodev(
    kernel: fakehost.Controller,
) -> None:
    kernel.set_vfs(FLEX, 2)
    for function in (CARD, FLEX_VF):
        kernel.die_at_reset(function)
        error = failure(kernel.root, reset(function))
        assert error.number == errno.ENODEV
        assert "reads as ones" in str(error)
        assert "does not answer" in error.hint
        # sysfs still shows the cached ids.
        assert executing.read(kernel, function, "vendor") != "0xffff"


def test_ids_of_another_card_are_no_answer(
    kernel: fakehost.Controller,
) -> None:
    vendor = kernel.sys / path_of(CARD, "vendor")
    assert vendor.read_text() == "0x10de\n"
    header = (kernel.sys / path_of(CARD, "config")).read_bytes()[:16]
    assert scrub.is_answer(header, b"\xde\x10\x07\x1e")
    assert not scrub.is_answer(header, b"\xde\x10\x08\x1e")


def test_a_missing_or_unreadable_function_does_not_answer(
    kernel: fakehost.Controller,
) -> None:
    root = str(kernel.root)
    kernel.fail(path_of(FLEX, "config"), "EIO", on="read")
    kernel.unplug(CARD)
    for address in (FLEX, CARD, "../x"):
        assert not reset_checks.is_answering(root, address)
    error = failure(kernel.root, reset())
    assert error.number == errno.ENOENT
    assert reset_checks.read(root, [CARD]) == ()
    assert reset_checks.read_ids(root, CARD) == ("", "")
    kernel.fail(f"bus/pci/devices/{FLEX}", "EIO", on="list")
    with pytest.raises(errors.UnreadableError):
        reset_checks.read(root, [FLEX])


def test_a_card_with_vfs_is_not_reset(kernel: fakehost.Controller) -> None:
    kernel.set_vfs(FLEX, 2)
    assert failure(kernel.root, reset(FLEX)).number == errno.EBUSY
    assert resets(kernel) == []


def test_a_failed_reset_restores_the_driver(
    kernel: fakehost.Controller,
) -> None:
    (bus,) = reset_checks.read(str(kernel.root), [CARD])
    assert (bus.functions[0].driver, bus.is_resettable) == ("nouveau", True)
    before = executing.state(kernel)
    kernel.fail(path_of(CARD, "reset"), "ENOTTY")
    off = actions.BindDriver(function=CARD, driver="", before="nouveau")
    error = failure(kernel.root, off, reset(), off.undo())
    assert error.number == errno.ENOTTY
    assert executing.state(kernel) == before


def test_vfio_pci_is_no_driver_of_the_host(
    kernel: fakehost.Controller,
) -> None:
    executor(kernel.root).apply(
        actions.BindDriver(function=CARD, driver="vfio-pci")
    )
    (bus,) = reset_checks.read(str(kernel.root), [CARD])
    assert bus.functions == (
        card_reset.ReleasedFunction(
            address=CARD, driver="", bound="vfio-pci", methods=("flr",)
        ),
    )


@pytest.mark.parametrize(
    ("reset", "methods", "release", "expected"),
    [
        (True, "flr bus\n", "6.8.0", "flr bus"),
        (True, "\n", "6.8.0", "none"),
        (True, "", "6.8.0", "none"),
        # Kernels before 5.15 name no methods.
        (True, None, "5.4.0", "reset"),
        (True, None, "", "reset"),
        (False, None, "6.8.0", "none"),
        (False, None, "5.15.0", "none"),
        # A capture without these files proves nothing.
        (False, None, "5.14.0-503.el9", "unknown"),
        (False, None, "", "unknown"),
    ],
)
def test_reset_methods_are_read(
    tmp_path: Path,
    reset: bool,
    methods: str | None,
    release: str,
    expected: str,
) -> None:
    """``reset`` exists even where its methods are switched off."""
    place = tmp_path / "sys/bus/pci/devices" / CARD
    place.mkdir(parents=True)
    if reset:
        (place / "reset").touch()
    if methods is not None:
        (place / "reset_method").write_text(methods)
    if release:
        path = tmp_path / "proc/sys/kernel/osrelease"
        path.parent.mkdir(parents=True)
        path.write_text(release)
    (bus,) = reset_checks.read(str(tmp_path), [CARD])
    assert bus.describe().partition(":")[0] == expected


@pytest.mark.parametrize("name", ["reset", "reset_method"])
def test_another_function_shows_that_resets_are_recorded(
    tmp_path: Path, name: str
) -> None:
    """An EL 9 kernel (5.14) has reset_method; a version decides nothing."""
    for address in (CARD, FLEX):
        (tmp_path / "sys/bus/pci/devices" / address).mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices" / FLEX / name).write_text("flr\n")
    (bus,) = reset_checks.read(str(tmp_path), [CARD])
    assert bus.describe().startswith("none: ")


def test_an_unreadable_driver_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "sys/bus/pci/devices" / CARD
    place.mkdir(parents=True)
    (place / "driver").write_text("no link")
    with pytest.raises(errors.UnreadableError):
        reset_checks.read(str(tmp_path), [CARD])


# -- the command ------------------------------------------------------------


@pytest.fixture
def place(kernel: fakehost.Controller) -> Iterator[Path]:
    path = kernel.root / COMMAND.lstrip("/")
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o755)
    yield path
    for entry in path.parent.iterdir():
        entry.unlink()


def write(place: Path, text: str) -> None:
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)


def test_a_command_gets_only_the_address(
    kernel: fakehost.Controller, place: Path
) -> None:
    output = place.parent / "output"
    write(place, f'echo "$# $1" > {output}')
    assert executor(kernel.root).apply(run())
    assert output.read_text() == f"1 {CARD}\n"


def test_a_failing_command_is_reported_with_its_output(
    kernel: fakehost.Controller, place: Path
) -> None:
    write(place, "echo the disk is busy >&2; exit 3")
    error = failure(kernel.root, run())
    assert error.number == errno.EIO
    assert "the disk is busy" in str(error)


def test_a_command_that_silences_the_function_is_enodev(
    kernel: fakehost.Controller, place: Path
) -> None:
    kernel.die_at_reset(CARD)
    write(place, f"echo 1 > {kernel.sys / path_of(CARD, 'reset')}")
    error = failure(kernel.root, run())
    assert error.number == errno.ENODEV
    assert "after the command" in error.hint


def test_a_command_writable_by_others_is_not_run(
    kernel: fakehost.Controller, place: Path
) -> None:
    mark = place.parent / "ran"
    write(place, f"touch {mark}")
    place.chmod(0o757)
    error = failure(kernel.root, run())
    assert error.number == errno.EACCES
    assert "root" in error.hint
    assert not mark.exists()


def test_a_symlink_is_not_run(
    kernel: fakehost.Controller, place: Path
) -> None:
    write(place, "exit 0")
    alias = kernel.root / "alias"
    alias.symlink_to(place.parent)
    try:
        error = failure(kernel.root, run("/alias/wipe"))
        assert error.number == errno.EACCES
    finally:
        alias.unlink()
    (place.parent / "link").symlink_to(place)
    assert failure(kernel.root, run("/opt/link")).number == errno.EACCES


def test_a_missing_command_is_enoent(kernel: fakehost.Controller) -> None:
    error = failure(kernel.root, run("/nonexistent/wipe"))
    assert error.number == errno.ENOENT
    assert "no such command" in error.hint


@pytest.mark.parametrize("command", ["wipe", "/opt/../wipe", "/opt/wipe -a"])
def test_a_malformed_command_is_refused(
    kernel: fakehost.Controller, command: str
) -> None:
    with pytest.raises(errors.MalformedError):
        privileged.run_scrub(str(kernel.root), command, CARD)


def test_a_hanging_command_is_etimedout(
    kernel: fakehost.Controller,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(privileged, "SCRUB_S", 0.2)
    write(place, "sleep 30")
    assert failure(kernel.root, run()).number == errno.ETIMEDOUT
