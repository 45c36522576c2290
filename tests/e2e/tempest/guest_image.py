# SPDX-License-Identifier: Apache-2.0
"""Image of a Linux guest that can be reached by SSH.

Its kernel is built of Debian's source with few options; its programs are
busybox and dropbear of this computer. The root disk is empty.
"""

import dataclasses
import pathlib
import re
import shutil

from tests.e2e.support.site import Site
from tests.e2e.tempest import network
from tests.lab.vm import layout, machine
from tests.lab.vm.artifacts import apt, initramfs, run, stamps

_FILES = pathlib.Path(__file__).parent / "guest"
_CONFIG, _INIT = _FILES / "kernel.config", _FILES / "init"
_DROPBEAR = pathlib.Path("/usr/sbin/dropbear")
_DIRECTORIES = (
    *("bin", "config", "dev", "etc/acpi/PWRF", "proc"),
    *("root/.ssh", "sys", "tmp", "var/log", "var/run"),
)
_POWER_OFF = "#!/bin/sh\npoweroff -f\n"
#: What busybox's acpid runs, by the button's event.
_POWER_BUTTON = "etc/acpi/PWRF/00000080"
_USERS = "root:*:0:0:root:/root:/bin/sh\n"
_DISK_BYTES = 1 << 20
#: To the projects that Tempest creates.
_VISIBLE = {"visibility": "public"}
#: Of the image: how Nova starts such a guest.
_PROPERTIES = {
    "img_config_drive": "mandatory",
    "hw_cdrom_bus": "scsi",
    "hw_scsi_model": "virtio-scsi",
    "hw_rng_model": "virtio",
}


@dataclasses.dataclass(frozen=True, slots=True)
class GuestFiles:
    """Kernel and initramfs, below the lab's directory."""

    place: layout.Layout

    @property
    def kernel(self) -> pathlib.Path:
        return self._root / "vmlinux"

    @property
    def initrd(self) -> pathlib.Path:
        return self._root / "initrd.img"

    @property
    def _root(self) -> pathlib.Path:
        return self.place.root / "ssh-guest"

    def build(self) -> None:
        """Build both, unless they are newer than their sources."""
        release = self.place.release()
        stamps.ensure(
            self.place,
            "ssh-guest-kernel",
            [release, _CONFIG],
            lambda: self._build_kernel(release),
            [self.kernel],
        )
        stamps.ensure(
            self.place,
            "ssh-guest-initrd",
            [_INIT, pathlib.Path(__file__), _DROPBEAR],
            self._build_initrd,
            [self.initrd],
        )

    def _build_kernel(self, release: str) -> None:
        package = apt.source_package(release)
        (deb,) = apt.download(self.place, [package])
        build = self._root / "build"
        shutil.rmtree(build, ignore_errors=True)
        build.mkdir(parents=True)
        apt.unpack(deb, build / "package")
        archive = build / "package/usr/src" / f"{package}.tar.xz"
        source = build / package
        run.run_command(["tar", "-C", str(build), "-xf", str(archive)])
        make = ["make", "-s", "-C", str(source)]
        run.run_command([*make, "tinyconfig"])
        merge = ["scripts/kconfig/merge_config.sh", "-m", ".config"]
        run.run_command([*merge, str(_CONFIG)], cwd=source)
        run.run_command([*make, "olddefconfig"])
        run.run_command([*make, "-j2", "vmlinux"])
        run.run_command(
            ["strip", "-o", str(self.kernel), str(source / "vmlinux")]
        )
        shutil.rmtree(build)

    def _build_initrd(self) -> None:
        tree = self._root / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        for name in _DIRECTORIES:
            (tree / name).mkdir(parents=True)
        for directory in (tree, tree / "root", tree / "root/.ssh"):
            directory.chmod(0o700)
        shutil.copy(initramfs.BUSYBOX, tree / "bin/busybox")
        shutil.copy(_DROPBEAR, tree / "bin/dropbear")
        for library in _libraries(_DROPBEAR):
            target = tree / library.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
        self._write(tree, "etc/passwd", _USERS)
        self._write(tree, _POWER_BUTTON, _POWER_OFF, 0o755)
        text = _INIT.read_text().replace("GATEWAY", network.OWN_ADDRESS)
        self._write(tree, "init", text, 0o755)
        key = ["dropbearkey", "-t", "ed25519", "-f"]
        run.run_command([*key, str(tree / "etc/hostkey")])
        initramfs.pack(tree, self.initrd)
        shutil.rmtree(tree)

    @staticmethod
    def _write(
        tree: pathlib.Path, name: str, text: str, mode: int = 0o644
    ) -> None:
        path = tree / name
        path.write_text(text)
        path.chmod(mode)


def _libraries(program: pathlib.Path) -> list[pathlib.Path]:
    """Return the shared libraries of a program, and their loader."""
    text = run.run_command(["ldd", str(program)])
    return [pathlib.Path(path) for path in re.findall(r"(/\S+) \(0x", text)]


def upload(lab: Site) -> str:
    """Build the image if it is not there; upload it, and return its id."""
    files = GuestFiles(layout.layout_of(lab.layout.lab))
    files.build()
    words = ["console=ttyS0", "quiet", "no_timer_check", "tsc=reliable"]
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    if khz := machine.clock_khz(cpuinfo):
        words.append(f"tsc_early_khz={khz}")
    parts = {
        f"{name}_id": lab.image(name, path.read_bytes(), **_VISIBLE)
        for name, path in (("kernel", files.kernel), ("ramdisk", files.initrd))
    }
    command_line = {"os_command_line": " ".join(words)}
    properties = _VISIBLE | _PROPERTIES | parts | command_line
    return lab.image("ssh-guest", bytes(_DISK_BYTES), **properties)
