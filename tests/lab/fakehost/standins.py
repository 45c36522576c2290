# SPDX-License-Identifier: Apache-2.0
"""Compiles what the full namespace preloads, the guest, and NVML."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "standins"
#: LD_PRELOAD libraries: for QEMU, and for libvirtd.
PRELOADS = ("fakevfio", "norlimit")
NVML = "libnvidia-ml.so.1"
GUEST = "acker"
#: SeaBIOS does not boot a smaller virtio disk.
GUEST_SIZE = 1 << 20
EMULATOR = "/usr/bin/qemu-system-x86_64"


class StandInError(Exception):
    """A source could not be built; the text has the compiler's."""


def build(directory: Path) -> None:
    """Build the outdated files in ``directory``: NAME.so, acker.img, bin/.

    ``bin/qemu-system-x86_64`` is the emulator that libvirtd shall find
    first. Files that are newer than their sources are left alone, so that
    libvirt's cache of the emulator's capabilities stays good. Raises
    StandInError.
    """
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    for name in PRELOADS:
        source = SOURCES / "preload" / f"{name}.c"
        library = directory / f"{name}.so"
        if _stale(library, source, *source.parent.glob(f"{name}_*.h")):
            flags = ("-O2", "-shared", "-fPIC", "-Wno-format-truncation")
            _run("gcc", *flags, "-o", library, source, "-ldl")
    _build_guest(directory)
    _write_emulator(directory)


def build_nvml(directory: Path) -> Path:
    """Return the fake NVML in ``directory``, built if it is out of date.

    Loaded with RTLD_GLOBAL before nvidia-ml-py asks for it by its soname,
    it is what that gets. Raises StandInError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / NVML
    sources = sorted(SOURCES.glob("nvml/nvml*.c"))
    if _stale(library, *sources, *SOURCES.glob("nvml/nvml*.h")):
        flags = ("-O2", "-Wall", "-shared", "-fPIC", f"-Wl,-soname,{NVML}")
        # tests run side by side: each sees the old file or the whole new
        made = library.with_suffix(f".{os.getpid()}")
        _run("gcc", *flags, "-o", made, *sources, "-lpthread")
        made.replace(library)
    return library


def guest_image(directory: Path) -> Path:
    """Return the boot disk of the guest that answers hot unplug."""
    return directory / f"{GUEST}.img"


def _build_guest(directory: Path) -> None:
    source, image = SOURCES / f"{GUEST}.S", guest_image(directory)
    if not _stale(image, source):
        return
    thing = image.with_suffix(".o")
    _run("as", "-o", thing, source)
    # 0x7c00: where a PC's firmware loads the boot sector
    place = ("-m", "elf_x86_64", "-Ttext", "0x7c00", "-e", "_start")
    _run("ld", *place, "--oformat", "binary", "-o", image, thing)
    with image.open("r+b") as file:
        file.truncate(GUEST_SIZE)


def _write_emulator(directory: Path) -> None:
    script = directory / "bin/qemu-system-x86_64"
    text = (
        f'#!/bin/sh\nLD_PRELOAD={directory}/fakevfio.so exec {EMULATOR} "$@"\n'
    )
    if not script.exists() or script.read_text() != text:
        script.write_text(text)
        script.chmod(0o755)


def _stale(target: Path, *sources: Path) -> bool:
    if not target.exists():
        return True
    built = target.stat().st_mtime
    return any(built < source.stat().st_mtime for source in sources)


def _run(*words: str | Path) -> None:
    command = [str(word) for word in words]
    try:
        subprocess.run(  # noqa: S603 - no input of users
            command, check=True, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise StandInError(
            f"{command[0]} is not installed: apt install gcc binutils"
        ) from error
    except subprocess.CalledProcessError as error:
        text = " ".join(command)
        raise StandInError(f"{text}: {error.stderr[-2000:]}") from error
