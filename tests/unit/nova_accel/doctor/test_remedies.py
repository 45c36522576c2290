# SPDX-License-Identifier: Apache-2.0
"""Each line of a remedy that is a command can be pasted into a shell."""

import shlex
import shutil
import subprocess
from collections.abc import Iterable

import pytest

from nova_accel.doctor import (
    check_report,
    checked_host,
    host_checks,
    registry,
)
from nova_accel.host.sysfs import host_reader
from tests.hosts import recorded
from tests.support.hosts import prepared
from tests.unit.nova_accel.doctor import changes, removal_changes

CHECKS = (*registry.list_checks(), *registry.list_cloud_checks())
# First words of commands; any other line is a sentence.
PROGRAMS = frozenset(
    "apt chgrp chmod dkms dnf dracut echo fpgainfo journalctl kmodsign mdevctl"
    " modprobe mokutil nova-accel nvidia-smi openstack placement-sync reboot"
    " runuser source systemctl tail udevadm update-grub update-initramfs"
    " xbmgmt done".split()
)
# Words of sentences. A command in front of one is not complete.
PROSE = frozenset("a and for it of or see then the where with".split())


@pytest.fixture(scope="module")
def remedies() -> list[str]:
    """Return the remedies of checks, and of what they find on hosts."""
    texts = {check.remedy for check in CHECKS}
    for name in recorded.NAMES:
        reader = host_reader.HostReader(source=recorded.load(name))
        host = checked_host.CheckedHost(reader)
        texts |= list_texts(registry.list_checks(), host)
    for name, case in {
        **changes.CASES,
        **removal_changes.CASES,
    }.items():
        host = prepared.changed(case.before | case.change, case.gpus)
        (check,) = (check for check in CHECKS if check.name == name)
        texts |= list_texts([check], host)
    return sorted(filter(None, texts))


def list_texts(
    checks: Iterable[host_checks.HostCheck], host: checked_host.CheckedHost
) -> set[str]:
    report = check_report.as_dict(registry.run(checks, host))
    return {
        finding["remedy"]
        for check in report["checks"]
        for finding in check["findings"]
    }


def is_command(line: str) -> bool:
    is_loop = line.startswith("for vf in ")
    return is_loop or line.split(maxsplit=1)[0] in PROGRAMS


@pytest.mark.slow
def test_there_are_many_commands(remedies: list[str]) -> None:
    lines = {line for text in remedies for line in text.splitlines()}
    assert len(set(filter(is_command, lines))) > 50


@pytest.mark.slow
def test_a_command_is_a_complete_line(remedies: list[str]) -> None:
    for text in remedies:
        check_remedy(text)


def check_remedy(text: str) -> None:
    bash = shutil.which("bash")
    assert bash
    commands = [line for line in text.splitlines() if is_command(line.strip())]
    if any(line.startswith("for vf") for line in commands):
        commands = [text]  # a loop has several lines
    for command in commands:
        done = subprocess.run(  # noqa: S603 - only its syntax is checked
            [bash, "-n", "-c", command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        if command != text:
            words = shlex.split(command, comments=True)
            assert not PROSE.intersection(words), command
    for line in text.splitlines():
        if not is_command(line.strip()):
            assert not has_command(line), line


def has_command(line: str) -> bool:
    """Return whether a sentence has a command after a colon."""
    words = line.partition(": ")[2].split()
    return bool(words) and words[0] in PROGRAMS
