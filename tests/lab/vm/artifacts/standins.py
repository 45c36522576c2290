# SPDX-License-Identifier: Apache-2.0
"""Compiles the libraries for QEMU and the tiny guests, copies the tool."""

import itertools
import pathlib
import shutil

from tests.lab.vm import layout
from tests.lab.vm.artifacts import run

#: shared objects for LD_PRELOAD: name -> sources in
#: tests/lab/standins/preload
PRELOADS = {
    "fakepci": ("fakepci.c", "fakedfl.c", "fakedfl.h"),
    "norlimit": ("norlimit.c",),
}
#: boot sectors
GUESTS = ("acker", "mover")
#: NVIDIA's tool for virtual functions, below /usr/lib
TOOL = "nvidia/sriov-manage"

#: SeaBIOS does not boot a virtio disk of a single sector
GUEST_IMAGE_BYTES = 1 << 20


def sources() -> list[pathlib.Path]:
    """Return the source files of the libraries, the guests and the tool."""
    files = itertools.chain.from_iterable(PRELOADS.values())
    names = [f"preload/{name}" for name in files]
    names += [f"{name}.S" for name in GUESTS]
    names.append(pathlib.PurePath(TOOL).name)
    return [layout.STANDIN_SOURCES / name for name in names]


def outputs(place: layout.Layout) -> list[pathlib.Path]:
    """Return the files that :func:`build_standins` writes."""
    names = [f"{name}.so" for name in PRELOADS]
    names += [f"{name}.img" for name in GUESTS]
    return [*(place.standins / name for name in names), place.usr_lib / TOOL]


def build_standins(place: layout.Layout) -> None:
    """Compile everything into ``place.standins``."""
    place.standins.mkdir(parents=True, exist_ok=True)
    for name, files in PRELOADS.items():
        parts = [f for f in files if f.endswith(".c")]
        run.run_command(
            [
                "gcc",
                "-O2",
                "-Wall",
                "-shared",
                "-fPIC",
                "-o",
                str(place.standins / f"{name}.so"),
                *(
                    str(layout.STANDIN_SOURCES / "preload" / part)
                    for part in parts
                ),
                "-ldl",
            ]
        )
    for name in GUESTS:
        _build_guest(place, name)
    tool = place.usr_lib / TOOL
    tool.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(layout.STANDIN_SOURCES / tool.name, tool)
    # a service with rights runs no program that others could write
    tool.chmod(0o755)


def _build_guest(place: layout.Layout, name: str) -> None:
    thing = place.standins / f"{name}.o"
    image = place.standins / f"{name}.img"
    run.run_command(
        [
            "as",
            "-o",
            str(thing),
            str(layout.STANDIN_SOURCES / f"{name}.S"),
        ]
    )
    run.run_command(
        [
            "ld",
            "-m",
            "elf_x86_64",
            # where a PC's firmware loads the boot sector
            "-Ttext",
            "0x7c00",
            "--oformat",
            "binary",
            "-e",
            "_start",
            "-o",
            str(image),
            str(thing),
        ]
    )
    with image.open("r+b") as file:
        file.truncate(GUEST_IMAGE_BYTES)
