# SPDX-License-Identifier: Apache-2.0
"""Kernel and initramfs of small guests.

The kernel is Debian's for virtual machines, from the mirror that apt uses on
this computer. The initramfs has busybox and ``guest-init``; with Python, also
this computer's own, and the modules of a network interface.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess

from tests.lab.vm import layout
from tests.lab.vm.artifacts import apt

_METAPACKAGE = "linux-image-cloud-amd64"
_INIT = pathlib.Path(__file__).with_name("guest-init")
_BUSYBOX = pathlib.Path("/bin/busybox")
_PYTHON = pathlib.Path("/usr/bin/python3")
_PRINT_LIBRARY = "import sysconfig; print(sysconfig.get_path('stdlib'))"
#: In the order in which they load.
NETWORK_MODULES = (
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "drivers/net/virtio_net",
)


@dataclasses.dataclass(frozen=True, slots=True)
class BootFiles:
    """Kernel and initramfs."""

    kernel: pathlib.Path
    initrd: pathlib.Path


def find_obstacle() -> str:
    """Return why this computer can't boot guests; empty if it can."""
    for program in ("apt-get", "cpio", "qemu-system-x86_64"):
        if not shutil.which(program):
            return f"needs {program}"
    if os.getuid() != 0 or not _BUSYBOX.exists():
        return "needs root and busybox-static"
    return ""


def fetch_kernel(place: pathlib.Path) -> pathlib.Path:
    """Unpack Debian's kernel below a directory; return its root."""
    here = layout.Layout(root=place)
    image = apt.current_image(here, _METAPACKAGE)
    for deb in apt.download(here, [image]):
        apt.unpack(deb, here.kernel)
    return here.kernel


def fetch_ovmf(place: pathlib.Path) -> pathlib.Path:
    """Unpack Debian's OVMF below a directory; return that of its files."""
    here = layout.Layout(root=place)
    for deb in apt.download(here, ["ovmf"]):
        apt.unpack(deb, place)
    return place / "usr/share/OVMF"


def build(kernel: pathlib.Path, place: pathlib.Path) -> BootFiles:
    """Write the initramfs of a guest that prints its functions."""
    return _pack(kernel, _start_tree(place), place / "initrd.img")


def build_with_python(
    kernel: pathlib.Path, place: pathlib.Path, files: dict[str, str]
) -> BootFiles:
    """Write an initramfs with Python and a network interface.

    :param files: content by path in the guest; ``/script`` is run.
    """
    tree = _start_tree(place)
    (modules,) = kernel.glob("lib/modules/*/kernel")
    for module in NETWORK_MODULES:
        shutil.copy(modules / f"{module}.ko", tree / "modules")
    _copy_python(tree)
    for path, content in files.items():
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    return _pack(kernel, tree, place / "initrd-python.img")


def _start_tree(place: pathlib.Path) -> pathlib.Path:
    tree = place / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "dev", "modules", "proc", "sys", "tmp"):
        (tree / name).mkdir(parents=True)
    shutil.copy(_BUSYBOX, tree / "bin/busybox")
    shutil.copy(_INIT, tree / "init")
    (tree / "init").chmod(0o755)
    return tree


def _copy_python(tree: pathlib.Path) -> None:
    """Copy this computer's Python, without what only tests and builds use."""
    library = _run(str(_PYTHON), "-c", _PRINT_LIBRARY).strip()
    target = tree / library.lstrip("/")
    shutil.copytree(
        library,
        target,
        ignore=shutil.ignore_patterns(
            *("__pycache__", "*.a", "config-*", "dist-packages"),
            *("idlelib", "lib2to3", "site-packages", "test", "tkinter"),
            *("ensurepip", "pydoc_data", "distutils", "unittest"),
        ),
        symlinks=False,
        ignore_dangling_symlinks=True,
    )
    program = tree / "usr/bin/python3"
    program.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(_PYTHON.resolve(), program)
    extensions = sorted(target.glob("lib-dynload/*.so"))
    for path in _list_libraries([program, *extensions]):
        copy = tree / str(path).lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def _list_libraries(files: list[pathlib.Path]) -> set[pathlib.Path]:
    output = _run("ldd", *map(str, files))
    paths = re.findall(r"(?:=> |^\s+)(/\S+) \(", output, re.MULTILINE)
    return {pathlib.Path(path) for path in paths}


def _run(*words: str) -> str:
    return subprocess.run(  # noqa: S603 - programs of this computer
        words, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _pack(
    kernel: pathlib.Path, tree: pathlib.Path, image: pathlib.Path
) -> BootFiles:
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
    with image.open("wb") as output:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],  # noqa: S607
            cwd=tree,
            input="\n".join([".", *names]).encode(),
            stdout=output,
            check=True,
        )
    (vmlinuz,) = kernel.glob("boot/vmlinuz-*")
    return BootFiles(vmlinuz, image)
