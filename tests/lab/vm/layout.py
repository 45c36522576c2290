# SPDX-License-Identifier: Apache-2.0
"""Paths and ports of the lab VM."""

import dataclasses
import os
import pathlib
import re

from tests.lab.vm import errors

#: first TCP port on 127.0.0.1, three for each machine; the environment
#: variable lets two labs run side by side
PORT_VARIABLE = "NOVA_ACCEL_LAB_PORT"
DEFAULT_PORT = 16599
_PORTS = 3

#: paths travel on the kernel's command line and in QEMU options, where white
#: space and commas separate
_SAFE_PATH = re.compile(r"[A-Za-z0-9_./+@:-]+")

#: the root directory of the machines: this computer's own, or that of another
#: release of Debian, unpacked into the lab
STOCK = "stock"
ROOTS = (STOCK, "trixie", "sid")

#: the project's own files that the machine runs or is built from
GUEST_FILES = pathlib.Path(__file__).resolve().parent / "guest"
STANDIN_SOURCES = pathlib.Path(__file__).resolve().parent.parent / "standins"


def port_base(number: int = 0) -> int:
    """Return a machine's first port.

    It is libvirt's; the next are the command channel's and that of an
    ironic-python-agent.
    """
    text = os.environ.get(PORT_VARIABLE, str(DEFAULT_PORT))
    if not text.isdecimal() or not 1024 <= int(text) <= 65000:
        msg = f"{PORT_VARIABLE}={text}: give a port from 1024 to 65000"
        raise errors.LabVmError(msg)
    return int(text) + _PORTS * number


def libvirt_uri(number: int = 0) -> str:
    """Return the URI of a served machine's libvirtd."""
    return f"qemu+tcp://127.0.0.1:{port_base(number)}/system"


def agent_url(number: int = 0) -> str:
    """Return the URL of an ironic-python-agent in a served machine."""
    return f"http://127.0.0.1:{port_base(number) + 2}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Paths of one lab's VM; made by :func:`layout_of`."""

    #: everything below is made by us and may be deleted when nothing runs
    root: pathlib.Path
    #: which of the machines that are served from what is prepared there
    number: int = 0
    #: one of ROOTS
    debian: str = STOCK

    @property
    def debian_root(self) -> pathlib.Path:
        """The root directory of the machines, which lies below a tmpfs."""
        is_stock = self.debian == STOCK
        return pathlib.Path("/") if is_stock else self.root / "root"

    @property
    def debs(self) -> pathlib.Path:
        """Downloaded packages."""
        return self.root / "debs"

    @property
    def stamps(self) -> pathlib.Path:
        """One digest of inputs per finished step of the preparation."""
        return self.root / "stamps"

    @property
    def kernel(self) -> pathlib.Path:
        """Unpacked kernel image and headers: a root directory."""
        return self.root / "kernel"

    @property
    def kernel_version(self) -> pathlib.Path:
        """A file that holds the kernel's release, as uname -r has it."""
        return self.root / "kernel-version"

    @property
    def vmlinux(self) -> pathlib.Path:
        """The uncompressed kernel, booted by PVH."""
        return self.root / "vmlinux"

    @property
    def initrd(self) -> pathlib.Path:
        """The initramfs."""
        return self.root / "initrd.img"

    @property
    def source(self) -> pathlib.Path:
        """The wanted part of Debian's kernel source."""
        return self.root / "source"

    @property
    def modules(self) -> pathlib.Path:
        """Build directories of the modules that Debian does not ship."""
        return self.root / "modules"

    @property
    def standins(self) -> pathlib.Path:
        """Compiled libraries of fake hardware, and the guest."""
        return self.root / "standins"

    @property
    def usr_lib(self) -> pathlib.Path:
        """Files that commands with the machine's /sys see in /usr/lib, too."""
        return self.standins / "usr-lib"

    @property
    def remotefs(self) -> pathlib.Path:
        """Compiled programs that carry the machine's /sys to the host."""
        return self.root / "remotefs"

    @property
    def serve(self) -> pathlib.Path:
        """State of the served machine; /run/lab inside."""
        return self._own("serve")

    @property
    def disk(self) -> pathlib.Path:
        """The machine's disk, which survives a power-off."""
        return self.serve / "disk"

    @property
    def capabilities(self) -> pathlib.Path:
        """QEMU's capabilities, as libvirt probed them inside."""
        return self.serve / "capabilities"

    @property
    def jobs(self) -> pathlib.Path:
        """One directory per running job."""
        return self.root / "jobs"

    @property
    def sysfs(self) -> pathlib.Path:
        """Mount point of the served machine's /sys."""
        return self._own("sys")

    @property
    def dev(self) -> pathlib.Path:
        """Mount point of our /dev with the served machine's FPGAs in it."""
        return self._own("dev")

    def _own(self, name: str) -> pathlib.Path:
        return self.root / (f"{name}-{self.number}" if self.number else name)

    def release(self) -> str:
        """Return the prepared kernel's release.

        Raises PrepareError when nothing has been prepared.
        """
        try:
            return self.kernel_version.read_text().strip()
        except FileNotFoundError:
            msg = f"no kernel in {self.root}: run prepare() first"
            raise errors.PrepareError(msg) from None


def check_path(path: pathlib.Path) -> pathlib.Path:
    """Return the absolute path; raise LabVmError if QEMU can't take it."""
    absolute = path.resolve()
    if not _SAFE_PATH.fullmatch(str(absolute)):
        msg = (
            f"{absolute}: the lab VM needs a path of letters, digits and "
            "_./+@:- only; move the checkout or set NOVA_ACCEL_LAB"
        )
        raise errors.LabVmError(msg)
    return absolute


def layout_of(lab: pathlib.Path, number: int = 0) -> Layout:
    """Return the layout of a VM under ``lab`` (the .lab directory).

    Its root directory is what :func:`select_root` selected last.
    """
    selected = _selected(lab)
    debian = selected.read_text() if selected.exists() else STOCK
    name = "vm" if debian == STOCK else f"vm-{debian}"
    return Layout(root=check_path(lab) / name, number=number, debian=debian)


def select_root(lab: pathlib.Path, debian: str) -> None:
    """Select the root directory of all machines; none of them may run.

    :param debian: one of ROOTS.
    """
    lab.mkdir(parents=True, exist_ok=True)
    _selected(lab).write_text(debian)


def _selected(lab: pathlib.Path) -> pathlib.Path:
    return lab / "vm-root"
