# SPDX-License-Identifier: Apache-2.0
"""Debian packages that are unpacked into the lab, never installed."""

import pathlib
import re

from tests.lab.vm import errors
from tests.lab.vm.artifacts import run

#: the metapackage whose dependency is the current kernel; the "cloud" flavour
#: has no VFIO_MDEV
KERNEL_METAPACKAGE = "linux-image-amd64"


def _depends(package: str) -> list[str]:
    text = run.run_command(["apt-cache", "depends", "--", package])
    return re.findall(r"^\s*Depends: (\S+)", text, re.MULTILINE)


def _dependency(package: str, prefix: str) -> str:
    names = [name for name in _depends(package) if name.startswith(prefix)]
    if not names:
        msg = (
            f"apt knows no {prefix}* for {package}: run 'apt-get update' "
            "on a Debian 12 machine"
        )
        raise errors.PrepareError(msg)
    return names[0]


def current_release() -> str:
    """Return the release (uname -r) of Debian's current amd64 kernel."""
    try:
        image = _dependency(KERNEL_METAPACKAGE, "linux-image-")
    except errors.PrepareError:
        run.run_command(["apt-get", "-qq", "update"])
        image = _dependency(KERNEL_METAPACKAGE, "linux-image-")
    return image.removeprefix("linux-image-")


def kernel_packages(release: str) -> list[str]:
    """Return the packages that hold a kernel and what builds its modules."""
    headers = f"linux-headers-{release}"
    return [
        f"linux-image-{release}",
        headers,
        _dependency(headers, "linux-headers-"),
        _dependency(headers, "linux-kbuild-"),
    ]


def source_package(release: str) -> str:
    """Return the source package of a kernel, as ``linux-source-6.1``."""
    major, minor, *_ = release.split(".")
    return f"linux-source-{major}.{minor}"


def download(packages: list[str], debs: pathlib.Path) -> list[pathlib.Path]:
    """Download packages (apt checks their signatures), return the files.

    What is already there and intact is not fetched again.
    """
    debs.mkdir(parents=True, exist_ok=True)
    # root downloads as root: the _apt user may not enter the lab
    fetch = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download"]
    try:
        run.run_command([*fetch, *packages], cwd=debs)
    except errors.PrepareError:
        # old lists name files that the mirror has dropped
        run.run_command(["apt-get", "-qq", "update"])
        run.run_command([*fetch, *packages], cwd=debs)
    return [_newest(debs, package) for package in packages]


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
