# SPDX-License-Identifier: Apache-2.0
"""libvirtd of another Debian, in namespaces of its own.

The root directory is shared; each daemon has its own configuration, domains
and socket below its place, and this computer's /dev/shm, where kernels,
consoles and sockets of guests belong.
"""

import contextlib
import dataclasses
import pathlib
import subprocess
import time
import uuid
from collections.abc import Iterator

import libvirt

from tests.lab.guests import embedded
from tests.lab.vm import layout
from tests.lab.vm.artifacts import debian

PACKAGES = (
    *("iproute2", "libvirt-daemon", "libvirt-daemon-driver-qemu"),
    *("qemu-system-x86", "seabios"),
)
_TIMEOUT_S = 60
_DIRECTORIES = ("run", "etc/libvirt", "var/lib/libvirt", "var/log/libvirt")
# $1 is the root directory, $2 the place, $3 the name of the host. Without
# /dev/kvm: guests are emulated, and libvirt asks QEMU for its capabilities
# anew where QEMU can't use KVM but root may open it. The shell waits for the
# QEMUs that become its children: libvirt waits for minutes for those that
# nothing has waited for.
_RUN = """
set -e
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount -t tmpfs dev "$1/dev"
for name in null zero full random urandom; do
    touch "$1/dev/$name"
    mount --bind "/dev/$name" "$1/dev/$name"
done
mkdir "$1/dev/shm" "$1/dev/pts"
mount --bind /dev/shm "$1/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
ln -s pts/ptmx "$1/dev/ptmx"
mount --rbind /sys "$1/sys"
for directory in run etc/libvirt var/lib/libvirt var/log/libvirt; do
    mkdir -p "$1/$directory"
    mount --bind "$2/$directory" "$1/$directory"
done
hostname "$3"
chroot "$1" libvirtd --config /etc/libvirt/libvirtd.conf &
wait
"""
_NAMESPACES = ("--mount", "--pid", "--uts", "--fork", "--kill-child")


def unpack(place: pathlib.Path) -> pathlib.Path:
    """Unpack Debian 13 with libvirt below a directory, once; return it."""
    here = dataclasses.replace(layout.Layout(root=place), debian="trixie")
    if not (here.root / "unpacked").exists():
        here.root.mkdir(parents=True, exist_ok=True)
        debian.unpack(here, PACKAGES)
        (here.root / "unpacked").touch()
    return here.debian_root


@contextlib.contextmanager
def serve(
    root: pathlib.Path, place: pathlib.Path, name: str
) -> Iterator[libvirt.virConnect]:
    """Run libvirtd; yield a connection to it.

    :param place: an empty directory.
    :param name: the host's.
    """
    for directory in _DIRECTORIES:
        (place / directory).mkdir(parents=True)
    etc = place / "etc/libvirt"
    (etc / "qemu.conf").write_text(embedded.SETTINGS)
    (etc / "libvirtd.conf").write_text(
        'auth_unix_ro = "none"\nauth_unix_rw = "none"\n'
        f'host_uuid = "{uuid.uuid4()}"\n'
    )
    words = ["unshare", *_NAMESPACES, "sh", "-c", _RUN, "sh"]
    with (place / "libvirtd.log").open("wb") as log:
        daemon = subprocess.Popen(  # noqa: S603 - fixed words
            [*words, str(root), str(place), name], stdout=log, stderr=log
        )
    try:
        connected = _connect(place, daemon)
        yield connected
        connected.close()
    finally:
        daemon.kill()
        daemon.wait()


def _connect(
    place: pathlib.Path, daemon: subprocess.Popen[bytes]
) -> libvirt.virConnect:
    socket = place / "run/libvirt/libvirt-sock"
    deadline = time.monotonic() + _TIMEOUT_S
    while daemon.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(libvirt.libvirtError):
            return libvirt.open(f"qemu+unix:///system?socket={socket}")
        time.sleep(0.5)
    raise RuntimeError((place / "libvirtd.log").read_text())
