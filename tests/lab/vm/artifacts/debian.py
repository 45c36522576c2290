# SPDX-License-Identifier: Apache-2.0
"""The root directory of another Debian release, for the machines.

mmdebstrap unpacks it, with libvirt, QEMU and a compiler, from the mirror that
apt uses on this computer.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Sequence

from tests.lab.vm import errors, layout
from tests.lab.vm.artifacts import apt, run

#: what a machine runs, and what builds modules for its kernel
PACKAGES = (
    "busybox-static",
    "gcc",
    "iproute2",
    "kmod",
    "libc6-dev",
    "libelf1",
    "libvirt-clients",
    "libvirt-daemon-system",
    "make",
    "mdevctl",
    "pciutils",
    "procps",
    "psmisc",
    "qemu-system-x86",
    "qemu-utils",
    "socat",
    "udev",
)
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TOOL = "mmdebstrap"
#: $0 is the root directory, $1 is seen at its own path in there, the rest is
#: the command; the kernel's objtool reads /proc (Linux 7.2)
_CHROOT = """
mkdir -p "$0$1" && mount --bind "$1" "$0$1" && mount --rbind /proc "$0/proc" &&
    shift && exec chroot "$0" "$@"
"""


def outputs(place: layout.Layout) -> list[pathlib.Path]:
    """Return a file that :func:`build_root` writes near its end."""
    return [place.debian_root / "usr/bin/qemu-system-x86_64"]


def build_root(place: layout.Layout) -> None:
    """Unpack and configure the packages of the release."""
    unpack(place, PACKAGES)


def unpack(
    place: layout.Layout, packages: Sequence[str], *options: str
) -> None:
    """Unpack and configure packages of the release in its root.

    ``options`` are further ones of mmdebstrap.
    """
    root = place.debian_root
    if root.exists():
        shutil.rmtree(root)
    source = f"deb [signed-by={_KEYRING}] {_mirror()} {place.debian} main"
    run.run_command(
        [
            str(_unpack_tool(place)),
            *("--variant=apt", "--mode=root", "--format=directory"),
            f"--keyring={_KEYRING}",
            '--aptopt=Acquire::Languages "none"',
            # A mirror may be a snapshot, whose signatures have expired.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            f"--include={','.join(packages)}",
            *options,
            *(place.debian, str(root), source),
        ]
    )


def prefix(place: layout.Layout) -> list[str]:
    """Return what to put before a command to run it on the machines' root.

    The lab's files for that root are at their paths there.
    """
    if place.debian == layout.STOCK:
        return []
    return [
        *("unshare", "--mount", "--propagation", "private"),
        *("sh", "-c", _CHROOT, str(place.debian_root), str(place.root)),
    ]


def _mirror() -> str:
    """Return the URI of this computer's mirror of Debian's archive."""
    fields = "$(REPO_URI) $(SUITE)"
    command = ["apt-get", "indextargets", "--format", fields]
    lines = run.run_command([*command, "Created-By: Packages"]).splitlines()
    for uri, suite in sorted(line.split(" ") for line in lines):
        if "-" not in suite:  # not oldstable-updates, oldstable-security
            return uri
    msg = "apt has no lists of Debian packages: run apt-get update"
    raise errors.PrepareError(msg)


def _unpack_tool(place: layout.Layout) -> pathlib.Path:
    """Return mmdebstrap, a script that this computer need not have."""
    (package,) = apt.download(
        dataclasses.replace(place, debian=layout.STOCK), [_TOOL]
    )
    directory = place.root / _TOOL
    apt.unpack(package, directory)
    return directory / "usr/bin" / _TOOL
