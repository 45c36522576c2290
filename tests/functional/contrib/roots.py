# SPDX-License-Identifier: Apache-2.0
"""Root directories of a Debian release, in which packages are installed.

A release is unpacked once for each list of packages, below
``NOVA_ACCEL_LAB``. A test works on an overlay of it, which records each file
that differs. APT, dpkg and all programs are real; systemd does not run, no
service starts, and the kernel is that of this computer.
"""

import contextlib
import fcntl
import filecmp
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from tests.lab.vm import layout
from tests.lab.vm.artifacts import debian

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LAB = pathlib.Path(os.environ.get("NOVA_ACCEL_LAB", REPOSITORY / ".lab"))
# Written when a release is unpacked.
_COMPLETE = "complete"
# Seconds for which a mirror has all that its lists name.
_CURRENT_S = 3600
# Mount points, logs, caches, and files that APT, dpkg and the tests rewrite in
# any case.
_VOLATILE = (
    *("dev", "mnt", "proc", "run", "sys", "tmp"),
    *("var/cache", "var/lib/apt", "var/lib/dpkg", "var/log"),
    *("etc/group-", "etc/gshadow-", "etc/ld.so.cache", "etc/resolv.conf"),
    "var/lib/systemd/deb-systemd-helper-masked",
)
# $1 is the unpacked root, $2 the directory of the overlay; then pairs of a
# file or directory and its place in the root, --, and the command. The mounts
# end with it. The option volatile skips the syncs of dpkg; the kernel then
# refuses a second mount while work/incompat exists.
_SCRIPT = """
set -e
root=$2/merged
rm -rf "$2/work/work/incompat"
mount -t overlay overlay \
    -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work,volatile" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$2/files" "$root/mnt"
mkdir -p "$root/run/host"
mount --bind /etc/ssl/certs "$root/run/host"
cat /etc/resolv.conf > "$root/etc/resolv.conf"
shift 2
while [ "$1" != -- ]; do
    [ -e "$root$2" ] || mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
exec chroot "$root" "$@"
"""
_APT = """\
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
"""
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


class RootDirectory:
    """Overlay of an unpacked release; its files are at /mnt in it."""

    def __init__(
        self,
        release: str,
        name: str,
        packages: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Make the overlay.

        :param name: name of the list of packages.
        :param environment: variables of all commands, beside those here.
        """
        self._environment = {**_ENVIRONMENT, **(environment or {})}
        self._mounts: list[str] = []
        place = _unpack(release, name, packages)
        self._lower = place.debian_root
        self._unpacked_at = (place.root / _COMPLETE).stat().st_mtime
        # overlayfs takes no overlay and no tmpfs of a container
        self._place = pathlib.Path(tempfile.mkdtemp(dir=place.root))
        self.files = self._place / "files"
        for directory in ("upper", "work", "merged", "files"):
            (self._place / directory).mkdir()
        # the packages' services must not start; see invoke-rc.d(8)
        policy = self.write("usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        self.write("etc/apt/apt.conf.d/99tests", _APT)

    def mount(self, source: pathlib.Path, path: str) -> None:
        """Show a file or directory of this computer in the root."""
        self._mounts += (str(source), path)

    def write(self, path: str, text: str) -> pathlib.Path:
        """Write a file into the root; return it."""
        target = self._place / "upper" / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def read(self, path: str) -> str:
        """Return the text of a file that the release does not have."""
        return (self._place / "upper" / path.lstrip("/")).read_text()

    def prefix(self, directory: str = "/") -> tuple[str, ...]:
        """Return what to put before a command that is to run in the root.

        Another one can't run there meanwhile. The root has the /sys, /proc
        and /dev of the process that runs it.
        """
        variables = (f"{k}={v}" for k, v in self._environment.items())
        return (
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-c", _SCRIPT, "sh"),
            *(str(self._lower), str(self._place), *self._mounts, "--"),
            *("env", "-i", f"--chdir={directory}", *variables),
        )

    def execute(
        self, *command: str, directory: str = "/"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the root; its status may be any."""
        return subprocess.run(  # noqa: S603 - commands of the tests
            [*self.prefix(directory), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *command: str, directory: str = "/") -> str:
        """Run a command in the root, which must succeed; return its output."""
        done = self.execute(*command, directory=directory)
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}: {output[-4000:]}"
        return done.stdout

    @contextlib.contextmanager
    def mounted(self) -> Iterator[pathlib.Path]:
        """Mount the root by itself, read-only; yield its directory."""
        merged = self._place / "merged"
        layers = f"lowerdir={self._place / 'upper'}:{self._lower}"
        argv = ("mount", "-t", "overlay", "-o", layers, "overlay", merged)
        subprocess.run(argv, check=True)  # noqa: S603 - our own directories
        try:
            yield merged
        finally:
            subprocess.run(["umount", merged], check=True)  # noqa: S603, S607

    def list_files(self) -> Mapping[str, str]:
        """Return the paths that differ from the release, and their states."""
        upper = self._place / "upper"
        return dict(self._compare(upper, upper))

    def _compare(
        self, upper: pathlib.Path, directory: pathlib.Path
    ) -> Iterator[tuple[str, str]]:
        for path in sorted(directory.iterdir()):
            name = path.relative_to(upper)
            lower = self._lower / name
            if str(name) in _VOLATILE:
                continue
            if path.is_dir() and not path.is_symlink():
                if not lower.is_dir():
                    yield str(name), "directory"
                yield from self._compare(upper, path)
            elif not _is_same(path, lower):
                yield str(name), _describe(path)

    def __enter__(self) -> Self:
        # APT has the lists of when the release was unpacked, months ago or now
        if time.time() - self._unpacked_at > _CURRENT_S:
            self.run("apt-get", "update")
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the overlay."""
        shutil.rmtree(self._place)


def _unpack(release: str, name: str, packages: Sequence[str]) -> layout.Layout:
    """Unpack the packages if that was not done."""
    place = layout.Layout(root=_LAB / f"{name}-{release}", debian=release)
    place.root.mkdir(parents=True, exist_ok=True)
    complete = place.root / _COMPLETE
    content = " ".join(packages)
    with (place.root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists() or complete.read_text() != content:
            complete.unlink(missing_ok=True)
            # With APT's lists an update reads their changes only.
            debian.unpack(place, packages, "--skip=cleanup/apt/lists")
            complete.write_text(content)
    return place


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
    """Return the state of a file as text."""
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    status = path.lstat()
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return "removed"  # a whiteout of overlayfs
    if not path.is_file():
        return stat.filemode(status.st_mode)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{stat.filemode(status.st_mode)} {digest}"
