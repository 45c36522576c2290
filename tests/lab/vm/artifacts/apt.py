# SPDX-License-Identifier: Apache-2.0
"""Debian packages that are unpacked into the lab, never installed.

They are of the release that the machines run on: with another root directory
than this computer's, apt reads that one's lists.
"""

import pathlib
import re

from tests.lab.vm import errors, layout
from tests.lab.vm.artifacts import run

#: the metapackage whose dependency is the current kernel; the "cloud" flavour
#: has no VFIO_MDEV
KERNEL_METAPACKAGE = "linux-image-amd64"


def _options(place: layout.Layout) -> list[str]:
    """Return the options that make apt use the lists of the machines' root."""
    root = place.debian_root
    if place.debian == layout.STOCK:
        return []
    status = f"Dir::State::status={root}/var/lib/dpkg/status"
    return ["-o", f"Dir={root}", "-o", status]


def _update(place: layout.Layout) -> None:
    run.run_command(["apt-get", *_options(place), "-qq", "update"])


def _depends(place: layout.Layout, package: str) -> list[str]:
    command = ["apt-cache", *_options(place), "depends", "--", package]
    text = run.run_command(command)
    return re.findall(r"^\s*Depends: (\S+)", text, re.MULTILINE)


def _dependency(place: layout.Layout, package: str, prefix: str) -> str:
    names = _depends(place, package)
    matching = [name for name in names if name.startswith(prefix)]
    if not matching:
        msg = (
            f"apt knows no {prefix}* for {package}: run 'apt-get update' "
            "on a Debian 12 machine"
        )
        raise errors.PrepareError(msg)
    return matching[0]


def current_image(place: layout.Layout, metapackage: str) -> str:
    """Return the package of the kernel that a metapackage depends on."""
    try:
        return _dependency(place, metapackage, "linux-image-")
    except errors.PrepareError:
        _update(place)
        return _dependency(place, metapackage, "linux-image-")


def current_release(place: layout.Layout) -> str:
    """Return the release (uname -r) of Debian's current amd64 kernel."""
    image = current_image(place, KERNEL_METAPACKAGE)
    return image.removeprefix("linux-image-")


def kernel_packages(place: layout.Layout, release: str) -> list[str]:
    """Return the packages that hold a kernel and what builds its modules."""
    image, headers = f"linux-image-{release}", f"linux-headers-{release}"
    # From Debian 14 on the image only depends on those that have the files.
    parts = [n for n in _depends(place, image) if n.endswith(f"-{release}")]
    return [
        image,
        *parts,
        headers,
        _dependency(place, headers, "linux-headers-"),
        _dependency(place, headers, "linux-kbuild-"),
    ]


def source_package(release: str) -> str:
    """Return the source package of a kernel, as ``linux-source-6.1``."""
    major, minor, *_ = release.split(".")
    return f"linux-source-{major}.{minor}"


def download(place: layout.Layout, packages: list[str]) -> list[pathlib.Path]:
    """Download packages (apt checks their signatures), return the files.

    What is already there and intact is not fetched again.
    """
    place.debs.mkdir(parents=True, exist_ok=True)
    # root downloads as root: the _apt user may not enter the lab
    fetch = ["apt-get", *_options(place), "-qq"]
    fetch += ["-o", "APT::Sandbox::User=root", "download", *packages]
    try:
        run.run_command(fetch, cwd=place.debs)
    except errors.PrepareError:
        # old lists name files that the mirror has dropped
        _update(place)
        run.run_command(fetch, cwd=place.debs)
    return [_newest(place.debs, package) for package in packages]


def _newest(debs: pathlib.Path, package: str) -> pathlib.Path:
    files = list(debs.glob(f"{package}_*.deb"))
    if not files:
        msg = f"apt-get download left no {package}_*.deb in {debs}"
        raise errors.PrepareError(msg)
    return max(files, key=lambda path: path.stat().st_mtime)


def unpack(deb: pathlib.Path, root: pathlib.Path) -> None:
    """Unpack one package under ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    run.run_command(["dpkg", "-x", str(deb), str(root)])
