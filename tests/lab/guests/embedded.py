# SPDX-License-Identifier: Apache-2.0
"""libvirt's QEMU driver, embedded in the process of a test."""

import contextlib
import pathlib
import threading
from collections.abc import Iterator

import libvirt

# libvirt compares whether QEMU had KVM when it was asked with whether its user
# may open /dev/kvm, and asks QEMU anew at each device if they differ. The rest
# leaves this computer's files, groups and mounts as they are.
SETTINGS = """\
user = "root"
group = "root"
stdio_handler = "file"
security_driver = "none"
dynamic_ownership = 0
remember_owner = 0
namespaces = []
cgroup_controllers = []
"""


@contextlib.contextmanager
def open_driver(root: pathlib.Path) -> Iterator[libvirt.virConnect]:
    """Yield a connection whose domains are those below a directory.

    :raises libvirtError: there is no QEMU driver here.
    """
    libvirt.virEventRegisterDefaultImpl()
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            libvirt.virEventRunDefaultImpl()

    # The loop blocks between events: a timer ends it in time.
    libvirt.virEventAddTimeout(200, lambda *_: None, None)
    loop = threading.Thread(target=serve, daemon=True)
    loop.start()
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/qemu.conf").write_text(SETTINGS)
    try:
        connected = libvirt.open(f"qemu:///embed?root={root}")
        yield connected
        connected.close()
    finally:
        ended.set()
        loop.join(5)
