# SPDX-License-Identifier: Apache-2.0
"""Debian's kernel: unpacked, decompressed, and modules built against it."""

import itertools
import lzma
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from tests.lab.vm import errors, layout
from tests.lab.vm.artifacts import apt, debian, run

#: the kernel's own sources, from Debian's source package, which are built
#: unmodified. New fake drivers of the project go to EXTRA_MODULES.
SAMPLES = (
    "samples/vfio-mdev/mtty.c",
    "samples/vfio-mdev/mdpy.c",
    "samples/vfio-mdev/mdpy-defs.h",
    "samples/vfio-mdev/mbochs.c",
)
SAMPLE_MODULES = ("mtty", "mdpy", "mbochs")

#: the drivers of FPGA cards with a device feature list, which Debian leaves
#: out: name -> files of drivers/fpga (its Makefile), in the order in which
#: they load
FPGA_MODULES: Mapping[str, tuple[str, ...]] = {
    "fpga-mgr": ("fpga-mgr.c",),
    "fpga-bridge": ("fpga-bridge.c",),
    "fpga-region": ("fpga-region.c",),
    "dfl": ("dfl.c",),
    "dfl-fme-mgr": ("dfl-fme-mgr.c",),
    "dfl-fme-br": ("dfl-fme-br.c",),
    "dfl-fme-region": ("dfl-fme-region.c",),
    "dfl-fme": (
        "dfl-fme-main.c",
        "dfl-fme-pr.c",
        "dfl-fme-error.c",
        "dfl-fme-perf.c",
    ),
    "dfl-afu": (
        "dfl-afu-main.c",
        "dfl-afu-region.c",
        "dfl-afu-dma-region.c",
        "dfl-afu-error.c",
    ),
    "dfl-pci": ("dfl-pci.c",),
}
_FPGA_HEADERS = ("dfl.h", "dfl-afu.h", "dfl-fme.h", "dfl-fme-pr.h")

#: all that is taken of the kernel's sources
SOURCES = (
    *SAMPLES,
    *(
        f"drivers/fpga/{name}"
        for name in (
            *_FPGA_HEADERS,
            *itertools.chain.from_iterable(FPGA_MODULES.values()),
        )
    ),
)

#: modules of our own, built beside the samples: name -> files under
#: tests/lab/standins/kernel_modules, headers too
EXTRA_MODULES: Mapping[str, tuple[str, ...]] = {
    "nvidia": (
        "fakenvidia.c",
        "fakenvidia.h",
        "fakenvidia_mdev.c",
        "fakenvidia_migration.c",
        "fakenvidia_migration.h",
        "fakenvidia_vfio.c",
        "fakenvidia_vgpu.c",
        "fakenvidia_vgpu.h",
    ),
    "xe": ("fakexe.c",),
}

_XZ_MAGIC = b"\xfd7zXZ\x00"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ELF_MAGIC = b"\x7fELF"


def unpack_kernel(place: layout.Layout, release: str) -> None:
    """Download and unpack the kernel image and its headers."""
    shutil.rmtree(place.kernel, ignore_errors=True)
    for deb in apt.download(place, apt.kernel_packages(place, release)):
        apt.unpack(deb, place.kernel)
    # Debian's header Makefile names both of its halves by absolute paths
    makefile = headers_of(place, release) / "Makefile"
    text = makefile.read_text()
    makefile.write_text(text.replace("/usr/src/", f"{place.kernel}/usr/src/"))
    if not (place.kernel / "lib/modules" / release / "kernel").exists():
        # Debian 13: everything under /usr/lib
        shutil.rmtree(place.kernel / "lib", ignore_errors=True)
        (place.kernel / "lib").symlink_to("usr/lib")
    run.run_command(["depmod", "-b", str(place.kernel), release])


def image_of(place: layout.Layout, release: str) -> pathlib.Path:
    """Return the kernel's image: beside its modules from Debian 14 on."""
    image = place.kernel / "boot" / f"vmlinuz-{release}"
    if image.exists():
        return image
    return place.kernel / "usr/lib/modules" / release / "vmlinuz"


def headers_of(place: layout.Layout, release: str) -> pathlib.Path:
    """Return the directory that ``make -C`` takes for modules."""
    return place.kernel / "usr/src" / f"linux-headers-{release}"


def _decompressed(image: bytes) -> Iterator[bytes]:
    for magic, expand in ((_XZ_MAGIC, _unxz), (_ZSTD_MAGIC, _unzstd)):
        at = image.find(magic)
        while at >= 0:
            yield expand(image[at:])
            at = image.find(magic, at + 1)


def _unxz(data: bytes) -> bytes:
    try:
        return lzma.LZMADecompressor().decompress(data)
    except lzma.LZMAError:
        return b""


def _unzstd(data: bytes) -> bytes:
    # zstd complains of what follows the frame, after the frame is out
    argv = ["zstd", "-dcqf"]
    done = subprocess.run(  # noqa: S603
        argv, input=data, capture_output=True, check=False
    )
    return done.stdout


def extract_vmlinux(place: layout.Layout, release: str) -> None:
    """Take the ELF kernel out of the bzImage.

    QEMU boots it by PVH, which saves seconds of emulated decompression.
    """
    image = image_of(place, release).read_bytes()
    for data in _decompressed(image):
        if data.startswith(_ELF_MAGIC):
            place.vmlinux.write_bytes(data)
            return
    msg = f"no xz or zstd payload in vmlinuz-{release}"
    raise errors.PrepareError(msg)


def unpack_sources(place: layout.Layout, release: str) -> None:
    """Download Debian's kernel source and extract the wanted drivers."""
    package = apt.source_package(release)
    (deb,) = apt.download(place, [package])
    packed = place.root / "source-package"
    shutil.rmtree(packed, ignore_errors=True)
    apt.unpack(deb, packed)
    shutil.rmtree(place.source, ignore_errors=True)
    place.source.mkdir(parents=True)
    archive = packed / "usr/src" / f"{package}.tar.xz"
    # --occurrence: stop reading once all files have been seen
    run.run_command(
        [
            "tar",
            "-C",
            str(place.source),
            "--strip-components=1",
            "--occurrence=1",
            "-xf",
            str(archive),
            *(f"{package}/{name}" for name in SOURCES),
        ]
    )
    shutil.rmtree(packed)


def module_names() -> list[str]:
    """Return the names of all modules that are built here."""
    return [*SAMPLE_MODULES, *FPGA_MODULES, *EXTRA_MODULES]


def own_sources() -> list[pathlib.Path]:
    """Return the sources of our own modules."""
    names = itertools.chain.from_iterable(EXTRA_MODULES.values())
    return [layout.STANDIN_SOURCES / "kernel_modules" / name for name in names]


def _kbuild() -> str:
    """Return the Kbuild file; see Documentation/kbuild/modules.rst."""
    objects = " ".join(f"{name}.o" for name in module_names())
    lines = [f"obj-m += {objects}"]
    for name, files in (*FPGA_MODULES.items(), *EXTRA_MODULES.items()):
        if files == (f"{name}.c",):
            continue
        parts = [f"{f[:-2]}.o" for f in files if f.endswith(".c")]
        lines.append(f"{name}-y := {' '.join(parts)}")
    return "".join(f"{line}\n" for line in lines)


def build_modules(place: layout.Layout, release: str) -> None:
    """Build the kernel's drivers and our own modules, and install them.

    They go to ``extra`` of the unpacked kernel's module tree, so that
    modprobe finds them inside the machine.
    """
    build = place.modules
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(place.source / name, build)
    for path in own_sources():
        shutil.copy(path, build)
    (build / "Kbuild").write_text(_kbuild())
    run.run_command(
        [
            *debian.prefix(place),
            "make",
            "-s",
            f"-j{os.cpu_count() or 1}",
            "-C",
            str(headers_of(place, release)),
            f"M={build}",
            # BTF would want pahole and the uncompressed kernel of the build
            "CONFIG_DEBUG_INFO_BTF_MODULES=",
            "modules",
        ]
    )
    extra = place.kernel / "lib/modules" / release / "extra"
    extra.mkdir(exist_ok=True)
    for name in module_names():
        shutil.copy(build / f"{name}.ko", extra)
    run.run_command(["depmod", "-b", str(place.kernel), release])
