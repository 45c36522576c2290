# SPDX-License-Identifier: Apache-2.0
"""Runs tests/e2e/inside_fakehost in the fake host's namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.fakehost.__main__ import missing_for_libvirt
from tests.lab.fakehost.mount import REPOSITORY

pytestmark = pytest.mark.fakehost

INSIDE = Path(__file__).parent / "inside_fakehost"


def fakehost(*command: str) -> subprocess.CompletedProcess[str]:
    reason = missing_for_libvirt()
    if reason:
        pytest.skip(reason)
    return subprocess.run(  # noqa: S603
        [sys.executable, "-m", "tests.lab.fakehost", *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_libvirt_and_qemu_on_the_simulated_kernel() -> None:
    done = fakehost(
        "--",
        sys.executable,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", str(INSIDE)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_the_exit_status_is_the_commands() -> None:
    done = fakehost("--", "sh", "-c", "hostname; exit 7")
    assert done.returncode == 7
    assert done.stdout == "fakehost\n"


def test_this_machines_own_sys_and_run_stay_as_they_were() -> None:
    mark, card = Path(f"/run/mark-{os.getpid()}"), Path("/sys/class/mdev_bus")
    script = f"touch {mark} && ls {mark} {card}"
    done = fakehost("--", "sh", "-c", script)
    assert "mtty" in done.stdout
    assert str(mark) in done.stdout
    assert not mark.exists()
    assert not (card / "mtty").exists()


def test_a_bad_spec_is_refused_before_anything_is_mounted(
    tmp_path: Path,
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text('{"cards": [{"kind": "toaster"}]}')
    done = fakehost("--spec", str(spec), "--", "true")
    assert done.returncode == 125
    assert "no card of kind 'toaster'; known: alveo, dfl" in done.stderr
