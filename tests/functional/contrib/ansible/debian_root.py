# SPDX-License-Identifier: Apache-2.0
"""Debian 13 in a chroot, with Ansible and this collection in it.

The root is unpacked once, below ``NOVA_ACCEL_LAB``. A test runs on an overlay
of it, which records each file that differs. The roles, Ansible, APT, dpkg,
GRUB's and initramfs-tools' programs are real, but for grub-probe, which can't
read an overlay. systemd does not run, and the kernel is that of this computer.
"""

import configparser
import dataclasses
import filecmp
import json
import os
import pathlib
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.lab.vm import layout
from tests.lab.vm.artifacts import debian

REPOSITORY = pathlib.Path(__file__).resolve().parents[4]
COLLECTION = REPOSITORY / "contrib/ansible"
MANIFESTS = "/var/lib/nova-accel/drivers"
PACKAGES = (
    *("ansible-core", "ca-certificates", "grub2-common", "initramfs-tools"),
    *("kmod", "python3-apt", "python3-cliff", "python3-lxml", "systemd"),
    *("python3-os-resource-classes", "python3-os-traits"),
    *("python3-oslo.config", "python3-pyudev"),
    "python3-ansible-runner",
)
# Logs, caches, and files that APT, dpkg and Ansible rewrite in any run.
# dpkg's list of packages is compared by itself.
_VOLATILE = (
    *("run", "tmp", "var/cache", "var/lib/apt", "var/log"),
    *("var/lib/dpkg", "var/lib/systemd/deb-systemd-helper-masked"),
    *("etc/group-", "etc/gshadow-", "etc/ld.so.cache"),
)
# $1 root, $2 merged directory, $3 the test's files, $4 repository; then the
# command. The mounts end with it.
_SCRIPT = """
set -e
root=$2
mount -t overlay overlay -o "lowerdir=$1,upperdir=$3/upper,workdir=$3/work" $2
mount -t proc proc $root/proc
mount --rbind /sys $root/sys
mount --rbind /dev $root/dev
mount -t tmpfs tmpfs $root/run
mkdir -p $root/run/test $root/run/src
mkdir -p $root/run/collections/ansible_collections/nova_accel/host
mount --bind $3/files $root/run/test
mount --bind $3/files/bin/grub-probe $root/usr/sbin/grub-probe
mount --bind $4 $root/run/src
mount --bind $4/contrib/ansible \
    $root/run/collections/ansible_collections/nova_accel/host
shift 4
exec chroot $root "$@"
"""
_ENVIRONMENT = {
    "ANSIBLE_COLLECTIONS_PATH": "/run/collections",
    "ANSIBLE_LOCALHOST_WARNING": "false",
    "ANSIBLE_NOCOLOR": "true",
    "DEBIAN_FRONTEND": "noninteractive",
    "HOME": "/run",
    "LC_ALL": "C.UTF-8",
    "PATH": "/run/test/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
_DOCTOR = """\
#!/bin/sh
export PYTHONPATH=/run/src:/run/test/metadata PYTHONDONTWRITEBYTECODE=1
exec python3 -m nova_accel.cli.commands "$@"
"""
# Substitute that names a device of a kind that each GRUB can read.
_GRUB_PROBE = """\
#!/bin/sh
case "$*" in
*--target=device*) echo /dev/sda1 ;;
*--target=fs_uuid*) echo 0c6f0f9e-0000-4000-8000-000000000000 ;;
*--target=fs*) echo ext2 ;;
*--target=drive*) echo '(hd0,msdos1)' ;;
*--target=partmap*) echo msdos ;;
esac
"""


def build(lab: pathlib.Path) -> pathlib.Path:
    """Return the unpacked root; it is unpacked if it does not exist."""
    place = layout.Layout(root=lab / "ansible", debian="trixie")
    complete = lab / "ansible" / "complete"
    if not complete.exists():
        place.root.mkdir(parents=True, exist_ok=True)
        # APT's lists are kept, so that roles can install packages.
        debian.unpack(place, PACKAGES, "--skip=cleanup/apt/lists")
        (place.debian_root / "boot/grub").mkdir()
        complete.touch()
    return place.debian_root


@dataclasses.dataclass(frozen=True, slots=True)
class PlayResult:
    """Result of a run of the playbook."""

    status: int
    output: str

    @property
    def changed(self) -> int:
        """Return the number of tasks that changed something."""
        recap = self.output.rpartition("PLAY RECAP")[2]
        return int(recap.partition("changed=")[2].split()[0])


class DebianHost:
    """Overlay of the root."""

    def __init__(self, root: pathlib.Path, place: pathlib.Path) -> None:
        self._root, self._place = root, place
        self.files = place / "files"
        for name in ("upper", "work", "files", "merged"):
            (place / name).mkdir()
        self._write_programs()

    def _write_programs(self) -> None:
        """Write ``nova-accel`` with its entry points, and ``grub-probe``."""
        (self.files / "bin").mkdir()
        for name, text in (
            ("nova-accel", _DOCTOR),
            ("grub-probe", _GRUB_PROBE),
        ):
            program = self.files / "bin" / name
            program.write_text(text)
            program.chmod(0o755)
        setup = configparser.ConfigParser()
        setup.read(REPOSITORY / "setup.cfg")
        metadata = self.files / "metadata/nova_accel-0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Name: nova-accel\nVersion: 0\n")
        group = "nova_accel.commands"
        lines = setup["options.entry_points"][group]
        (metadata / "entry_points.txt").write_text(f"[{group}]{lines}\n")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the chroot; its status may be any."""
        merged = self._place / "merged"
        return subprocess.run(  # noqa: S603 - commands of the tests
            [
                *("unshare", "--mount", "--propagation", "private"),
                *("sh", "-c", _SCRIPT, "sh"),
                *map(str, (self._root, merged, self._place, REPOSITORY)),
                *("env", "-i"),
                *(f"{name}={value}" for name, value in _ENVIRONMENT.items()),
                *command,
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    def write(self, path: str, text: str) -> None:
        """Write a file that the host has before the roles run."""
        target = self._place / "upper" / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, path: str) -> str:
        """Return the text of a file that differs from the root's."""
        return (self._place / "upper" / path.lstrip("/")).read_text()

    def play(
        self,
        action: str,
        role: str,
        variables: Mapping[str, Any],
        *options: str,
    ) -> PlayResult:
        """Run an action of a role; options are those of Ansible."""
        extra = {
            **variables,
            "nova_accel_action": action,
            "nova_accel_roles": [role],
        }
        done = self.run(
            *("ansible-playbook", "nova_accel.host.driver"),
            *("-i", "localhost,", "-c", "local", "-e", json.dumps(extra)),
            *options,
        )
        return PlayResult(done.returncode, done.stdout + done.stderr)

    def list_packages(self) -> Sequence[str]:
        """Return the installed packages with their versions and states."""
        form = "${Package} ${Version} ${db:Status-Abbrev}\n"
        return self.run("dpkg-query", "-W", "-f", form).stdout.splitlines()

    def list_files(self) -> Mapping[str, str]:
        """Return files that differ from the root's, with their contents."""
        upper = self._place / "upper"
        return dict(self._compare(upper, upper))

    def _compare(
        self, upper: pathlib.Path, directory: pathlib.Path
    ) -> Iterator[tuple[str, str]]:
        for path in sorted(directory.iterdir()):
            name = path.relative_to(upper)
            lower = self._root / name
            if str(name) in _VOLATILE:
                continue
            if path.is_dir() and not path.is_symlink():
                if not lower.is_dir():
                    yield str(name), "directory"
                yield from self._compare(upper, path)
            elif not _is_same(path, lower):
                yield str(name), _describe(path)

    def remove(self) -> None:
        """Remove the overlay."""
        shutil.rmtree(self._place)


def _is_same(path: pathlib.Path, lower: pathlib.Path) -> bool:
    if path.is_symlink() or lower.is_symlink():
        return (
            path.is_symlink()
            and lower.is_symlink()
            and os.readlink(path) == os.readlink(lower)
        )
    if not (path.is_file() and lower.is_file()):
        return False
    is_same_mode = path.stat().st_mode == lower.stat().st_mode
    return is_same_mode and filecmp.cmp(path, lower, shallow=False)


def _describe(path: pathlib.Path) -> str:
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    status = path.lstat()
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return "removed"  # a whiteout of overlayfs
    text = path.read_text(errors="replace")
    return f"{stat.filemode(status.st_mode)} {text}"
