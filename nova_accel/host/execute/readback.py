# SPDX-License-Identifier: Apache-2.0
"""Read-back of actions: the state of the host that an action changes."""

import errno
import os
import re
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.host.execute import privileged
from nova_accel.host.sysfs import attributes, fs
from nova_accel.model import pci

_FUNCTIONS = "/sys/bus/pci/devices"
_MDEVS = "/sys/bus/mdev/devices"
# A PF's links to its VFs (drivers/pci/iov.c, VIRTFN_ID_LEN).
_VIRTFN = re.compile(r"virtfn[0-9]+")
# Content of driver_override without an override (pci-sysfs.c).
NO_OVERRIDE = ("", "(null)")
# Content of current_vgpu_type of a VF without a vGPU.
FREE = "0"
# Names of files of a vGPU.
PARAMS, PLACEMENT = "vgpu_params", "placement_id"


class Readback:
    """Reader of the state that actions change; it caches nothing.

    The kernel follows the links in a path, as it does for the writes.
    """

    def __init__(self, root: str) -> None:
        """Read files below ``root``."""
        self._root = root
        self._source = fs.DiskSource(root)

    def vgpu_type(self, function: str) -> str:
        """Return a VF's vGPU type, empty if it can't be read."""
        return self.vgpu_file(function, "current_vgpu_type") or ""

    def driver(self, function: str) -> str:
        """Return the driver bound to a function, empty for none."""
        try:
            target = self._source.link(f"{_FUNCTIONS}/{function}/driver")
        except OSError:
            return ""
        return os.path.basename(target or "")

    def vf_count(self, function: str) -> int | None:
        """Return how many VFs a PF has enabled, None if unknown."""
        return attributes.parse_number(
            self.attribute(function, "sriov_numvfs")
        )

    def guest_uses(self, function: str) -> Iterator[str]:
        """Yield descriptions of possible uses of a function by guests.

        sysfs does not show whether a process has a VF open, so a VF bound
        to a VFIO driver counts as used.
        """
        parents = self._mdev_parents()
        vfs = self.virtual_functions(function)
        for address in (function, *vfs):
            if address in parents or self.vgpu_type(address) not in ("", FREE):
                yield f"{address} holds a vGPU"
        for vf in vfs:
            driver = self.driver(vf)
            if pci.is_for_guests(driver):
                yield f"{vf} is bound to {driver}"

    def files(self) -> fs.Files:
        """Return a reader that has read nothing yet."""
        return fs.Files(self._source)

    def is_mdev_gone(self, uuid: str, parent: str) -> bool:
        """Return whether an mdev is removed completely."""
        # The kernel removes an mdev from the bus, waits for processes that
        # have it open, and removes its directory last.
        places = (_MDEVS, f"/sys/class/mdev_bus/{parent}")
        return not any(self._exists(f"{place}/{uuid}") for place in places)

    def _exists(self, path: str) -> bool:
        """Return whether a path exists; True if it can't be read."""
        try:
            self._source.mode(path)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)
        return True

    def mdev_place(self, uuid: str) -> tuple[str, str] | None:
        """Return an mdev's parent and type, None if it does not exist."""
        path = f"{_MDEVS}/{uuid}"
        try:
            device = self._source.link(path) or ""
            kind = self._source.link(f"{path}/mdev_type") or ""
        except OSError:
            return None
        parent = os.path.basename(os.path.dirname(device))
        return parent, os.path.basename(kind)

    def _mdev_parents(self) -> frozenset[str]:
        try:
            targets = [
                self._source.link(f"{_MDEVS}/{name}") or ""
                for name in self._source.names(_MDEVS)
            ]
        except OSError:
            return frozenset()
        return frozenset(
            os.path.basename(os.path.dirname(target)) for target in targets
        )

    def is_free(self, function: str) -> bool:
        """Return whether a VF has no vGPU."""
        type_id = self.vgpu_type(function)
        # An unreadable VF may have a vGPU; a removed VF has none.
        return type_id == FREE or (
            not type_id and self.files().is_gone(f"{_FUNCTIONS}/{function}")
        )

    def vgpu_file(self, target: str, name: str) -> str | None:
        """Return a file of a VF's or an mdev's vGPU, None if unreadable.

        A file that only root may read is read by the privileged daemon.
        """
        top = _FUNCTIONS if ":" in target else _MDEVS
        text = self.files().read_text(f"{top}/{target}/nvidia/{name}")
        number = 0
        if text in (errno.EACCES, errno.EPERM):
            number, text = privileged.read_vgpu(self._root, target, name)
        return None if number or isinstance(text, int) else text.strip()

    def virtual_functions(self, function: str) -> tuple[str, ...]:
        """Return the VFs of a PF whose physfn link exists."""
        files = self.files()
        place = f"{_FUNCTIONS}/{function}"
        try:
            links = [n for n in files.names(place) if _VIRTFN.fullmatch(n)]
        except errors.UnreadableError:
            return ()
        vfs = []
        for name in links:
            try:
                if files.link(f"{place}/{name}/physfn") == function:
                    vfs.append(files.link(f"{place}/{name}"))
            except errors.UnreadableError:
                continue  # the kernel creates the link after the directory
        return tuple(vfs)

    def attribute(self, function: str, name: str) -> str:
        """Return an attribute of a function, empty if unreadable."""
        text = self.files().read_text(f"{_FUNCTIONS}/{function}/{name}")
        return "" if isinstance(text, int) else text.strip()
