# SPDX-License-Identifier: Apache-2.0
"""Makes everything that the lab VM boots from; cached."""

import concurrent.futures
import fcntl
import pathlib

from tests.lab.vm import errors, layout, progress, serve
from tests.lab.vm.artifacts import (
    apt,
    debian,
    initramfs,
    kernel,
    remotefs,
    stamps,
    standins,
)


def _release(place: layout.Layout) -> str:
    """Return the prepared kernel's release, or Debian's current one.

    A prepared kernel stays: delete the directory to get a newer one.
    """
    if place.kernel_version.exists():
        return place.release()
    return apt.current_release(place)


def _prepare_kernel(
    place: layout.Layout, release: str, say: progress.Progress
) -> None:
    image = kernel.image_of(place, release)
    headers = kernel.headers_of(place, release) / "Makefile"
    if stamps.ensure(
        place,
        "kernel",
        [release, str(place.kernel)],
        lambda: kernel.unpack_kernel(place, release),
        [image, headers],
    ):
        say.say(f"kernel {release} unpacked")
    place.kernel_version.write_text(f"{release}\n")
    if stamps.ensure(
        place,
        "vmlinux",
        [release],
        lambda: kernel.extract_vmlinux(place, release),
        [place.vmlinux],
    ):
        say.say("kernel decompressed")
    if stamps.ensure(
        place,
        "initramfs",
        [
            release,
            *initramfs.BOOT_MODULES,
            layout.GUEST_FILES / "initramfs-init",
        ],
        lambda: initramfs.build_initramfs(place, release),
        [place.initrd],
    ):
        say.say("initramfs written")


def _prepare_source(
    place: layout.Layout, release: str, say: progress.Progress
) -> None:
    if stamps.ensure(
        place,
        "source",
        [release, *kernel.SOURCES],
        lambda: kernel.unpack_sources(place, release),
        [place.source / name for name in kernel.SOURCES],
    ):
        say.say("drivers extracted from Debian's kernel source")


def _prepare_modules(
    place: layout.Layout, release: str, say: progress.Progress
) -> None:
    files = [place.source / name for name in kernel.SOURCES]
    files += kernel.own_sources()
    extra = place.kernel / "lib/modules" / release / "extra"
    names = kernel.module_names()
    if stamps.ensure(
        place,
        "modules",
        [release, str(place.modules), *names, *files],
        lambda: kernel.build_modules(place, release),
        [extra / f"{name}.ko" for name in names],
    ):
        say.say(f"modules built: {' '.join(names)}")


def prepare(lab: pathlib.Path, root: str | None = None) -> None:
    """Build the kernel, initramfs, modules and fake hardware under ``lab``.

    Downloads about 240 MB from the machine's own apt sources the first
    time, and 300 MB more for the root directory of another release. A second
    call does only what changed; two at once take turns. Raises PrepareError.

    :param root: one of layout.ROOTS; None for the root prepared last.
    """
    place = layout.layout_of(lab)
    if root is not None and root != place.debian:
        if serve.is_up(lab):
            msg = (
                f"the lab VM runs on the root {place.debian}: stop it before"
                f" you prepare {root}"
            )
            raise errors.PrepareError(msg)
        layout.select_root(lab, root)
        place = layout.layout_of(lab)
    place.root.mkdir(parents=True, exist_ok=True)
    with (place.root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _prepare_all(place, progress.Progress())


def _prepare_all(place: layout.Layout, say: progress.Progress) -> None:
    if place.debian != layout.STOCK:
        _prepare_root(place, say)
    release = _release(place)
    _prepare_programs(place, say)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(_prepare_kernel, place, release, say),
            pool.submit(_prepare_source, place, release, say),
        ]
        for done in both:
            done.result()
    _prepare_modules(place, release, say)
    say.say("lab VM prepared")


def _prepare_root(place: layout.Layout, say: progress.Progress) -> None:
    def build() -> None:
        say.say(f"unpacking Debian {place.debian} (a few minutes)")
        debian.build_root(place)

    if stamps.ensure(
        place, "root", debian.PACKAGES, build, debian.outputs(place)
    ):
        say.say(f"root directory of Debian {place.debian} unpacked")


def _prepare_programs(place: layout.Layout, say: progress.Progress) -> None:
    if stamps.ensure(
        place,
        "standins",
        standins.sources(),
        lambda: standins.build_standins(place),
        standins.outputs(place),
    ):
        say.say("fake hardware compiled")
    if stamps.ensure(
        place,
        "remotefs",
        remotefs.sources(),
        lambda: remotefs.build_remotefs(place),
        remotefs.outputs(place),
    ):
        say.say("remote /sys compiled")
