# SPDX-License-Identifier: Apache-2.0
"""The initramfs: busybox, a few modules, and the script that mounts root."""

import lzma
import pathlib
import shutil
import subprocess

from tests.lab.vm import errors, layout
from tests.lab.vm.artifacts import run

BUSYBOX = pathlib.Path("/bin/busybox")

#: what it takes to see the host's files and to talk; the rest is loaded
#: from those files
BOOT_MODULES = (
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "virtiofs",
    "overlay",
)

_MOUNT_POINTS = ("dev", "proc", "sys", "lower", "rw", "new", "files")


def module_files(place: layout.Layout, release: str) -> list[pathlib.Path]:
    """Return the boot modules and what they need, in order of loading."""
    paths: dict[pathlib.Path, None] = {}
    for name in BOOT_MODULES:
        text = run.run_command(
            [
                "modprobe",
                "-d",
                str(place.kernel),
                "-S",
                release,
                "--show-depends",
                name,
            ]
        )
        for line in text.splitlines():
            verb, _, path = line.strip().partition(" ")
            if verb == "insmod":
                paths[pathlib.Path(path.strip())] = None
    return list(paths)


def _install_module(path: pathlib.Path, mods: pathlib.Path) -> str:
    if path.suffix == ".xz":
        target = mods / path.stem
        target.write_bytes(lzma.decompress(path.read_bytes()))
    else:
        target = mods / path.name
        shutil.copy(path, target)
    return target.name


def build_initramfs(place: layout.Layout, release: str) -> None:
    """Write the initramfs image."""
    if not BUSYBOX.exists():
        msg = f"no {BUSYBOX}: install the package busybox-static"
        raise errors.PrepareError(msg)
    tree = place.root / "initramfs"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "mods", *_MOUNT_POINTS):
        (tree / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, tree / "bin/busybox")
    shutil.copy(layout.GUEST_FILES / "initramfs-init", tree / "init")
    (tree / "init").chmod(0o755)
    files = module_files(place, release)
    names = [_install_module(path, tree / "mods") for path in files]
    (tree / "mods/order").write_text("".join(f"{n}\n" for n in names))
    pack(tree, place.initrd)
    shutil.rmtree(tree)


def pack(tree: pathlib.Path, image: pathlib.Path) -> None:
    """Write a directory as an initramfs."""
    listing = "\n".join(
        str(path.relative_to(tree)) for path in sorted(tree.rglob("*"))
    )
    with image.open("wb") as out:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],  # noqa: S607
            cwd=tree,
            input=f".\n{listing}\n".encode(),
            stdout=out,
            check=True,
        )
