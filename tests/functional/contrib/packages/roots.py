# SPDX-License-Identifier: Apache-2.0
"""Root directories of a Debian release, in which packages are installed.

The release is unpacked once, below ``NOVA_ACCEL_LAB``. A test works on an
overlay of it. APT and dpkg are real; no service starts, and the kernel is that
of this computer.
"""

import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from typing import Self

from tests.functional import test_activation
from tests.lab.vm import layout
from tests.lab.vm.artifacts import debian

REPOSITORY = pathlib.Path(__file__).resolve().parents[4]
_LAB = pathlib.Path(os.environ.get("NOVA_ACCEL_LAB", REPOSITORY / ".lab"))
#: dpkg-buildpackage expects build-essential without a Build-Depends
_PACKAGES = ("build-essential", "ca-certificates")
#: what installations and running programs change in any case
_VOLATILE = (
    *("dev", "etc/ld.so.cache", "etc/resolv.conf", "mnt", "proc", "run"),
    *("sys", "tmp", "var/cache", "var/lib/apt", "var/lib/dpkg", "var/log"),
)
# $1 is the unpacked root, $2 the directory of the overlay; then the command.
# The mounts end with it.
_SCRIPT = """
set -e
root=$2/merged
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" \
    "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$2/files" "$root/mnt"
mkdir -p "$root/run/host"
mount --bind /etc/ssl/certs "$root/run/host"
cat /etc/resolv.conf > "$root/etc/resolv.conf"
shift 2
exec chroot "$root" "$@"
"""
_APT = """\
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "HOME": "/run",
    "LC_ALL": "C.UTF-8",
    "PATH": PATH,
    # The package index may have a certificate that only this computer trusts.
    "PIP_CERT": "/run/host/ca-certificates.crt",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}


def find_loaded_driver(
    files: pathlib.Path, run: Callable[..., str], text: str
) -> str:
    """Return what nova-compute loads with a configuration.

    :param files: directory that is /mnt where ``run`` runs a command.
    :param run: returns the output of a command.
    """
    nova_conf = f"{text}[oslo_concurrency]\nlock_path = /tmp\n"
    (files / "nova.conf").write_text(nova_conf)
    script = test_activation.AS_NOVA_COMPUTE
    output = run("python3", "-c", script, "/mnt/nova.conf")
    return str(json.loads(output.splitlines()[-1])["loaded"])


class RootDirectory:
    """Overlay of an unpacked release; its files are at /mnt in it."""

    def __init__(self, release: str) -> None:
        place = _unpack(release)
        self._lower = place.debian_root
        # overlayfs takes no overlay and no tmpfs of a container
        self._place = pathlib.Path(tempfile.mkdtemp(dir=place.root))
        self.files = self._place / "files"
        for name in ("upper", "work", "merged", "files"):
            (self._place / name).mkdir()
        # the packages' services must not start; see invoke-rc.d(8)
        policy = self._write("usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        self._write("etc/apt/apt.conf.d/99tests", _APT)

    def _write(self, name: str, text: str) -> pathlib.Path:
        path = self._place / "upper" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return path

    def run(self, *command: str, directory: str = "/") -> str:
        """Run a command in the root, which must succeed; return its output."""
        done = subprocess.run(  # noqa: S603 - commands of the tests
            [
                *("unshare", "--mount", "--propagation", "private"),
                *("sh", "-c", _SCRIPT, "sh"),
                *map(str, (self._lower, self._place)),
                *("env", "-i", f"--chdir={directory}"),
                *(f"{name}={value}" for name, value in _ENVIRONMENT.items()),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}"
        return done.stdout

    def copy_commit(self) -> None:
        """Write the commit that is checked out to ``source``."""
        place = self.files / "source"
        place.mkdir()
        archive = subprocess.run(  # noqa: S603
            ["git", "-C", str(REPOSITORY), "archive", "HEAD"],  # noqa: S607
            stdout=subprocess.PIPE,
            check=True,
        )
        subprocess.run(  # noqa: S603
            ["tar", "-C", str(place), "-x"],  # noqa: S607
            input=archive.stdout,
            check=True,
        )

    def list_files(self) -> set[str]:
        """Return the paths that the release does not have."""
        upper = self._place / "upper"
        paths = {path.relative_to(upper) for path in upper.rglob("*")}
        return {
            str(path)
            for path in paths
            if not any(path.is_relative_to(name) for name in _VOLATILE)
            and not _is_whiteout(upper / path)
        }

    def __enter__(self) -> Self:
        # the release may be months old
        self.run("apt-get", "update")
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the overlay."""
        shutil.rmtree(self._place)


def _unpack(release: str) -> layout.Layout:
    """Unpack the release if it does not exist."""
    place = layout.Layout(root=_LAB / f"packages-{release}", debian=release)
    place.root.mkdir(parents=True, exist_ok=True)
    complete = place.root / "complete"
    with (place.root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            debian.unpack(place, _PACKAGES)
            complete.touch()
    return place


def _is_whiteout(path: pathlib.Path) -> bool:
    """Return whether overlayfs marks a removed file."""
    return path.is_char_device() and path.lstat().st_rdev == 0
