# SPDX-License-Identifier: Apache-2.0
"""Kernel module that DKMS builds for the lab VM's kernel.

DKMS is Debian's, unpacked and not installed. The module has the name of AMD's
host driver and the code of a sample of the kernel. DKMS does not sign it:
sign-file is not where it looks for that.
"""

import pathlib
import subprocess

from tests.lab.vm import layout
from tests.lab.vm.artifacts import apt, kernel

NAME, VERSION = "gim", "1.0"
_CONFIG = f"""\
PACKAGE_NAME="{NAME}"
PACKAGE_VERSION="{VERSION}"
BUILT_MODULE_NAME[0]="{NAME}"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="make -C ${{kernel_source_dir}} \
M=${{dkms_tree}}/{NAME}/{VERSION}/build \
CONFIG_DEBUG_INFO_BTF_MODULES= modules"
CLEAN="true"
"""


def build(place: layout.Layout, directory: pathlib.Path) -> pathlib.Path:
    """Return a module that DKMS builds in a directory.

    :raises CalledProcessError: DKMS failed.
    """
    release = place.release()
    (package,) = apt.download(place, ["dkms"])
    apt.unpack(package, directory / "root")
    source = directory / f"src/{NAME}-{VERSION}"
    source.mkdir(parents=True)
    samples = place.source / "samples/vfio-mdev"
    (source / f"{NAME}.c").write_bytes((samples / "mdpy.c").read_bytes())
    header = samples / "mdpy-defs.h"
    (source / header.name).write_bytes(header.read_bytes())
    (source / "Kbuild").write_text(f"obj-m += {NAME}.o\n")
    (source / "dkms.conf").write_text(_CONFIG)
    tree = directory / "tree"
    tree.mkdir()
    subprocess.run(  # noqa: S603 - argv of a test
        [
            *("/bin/bash", str(directory / "root/usr/sbin/dkms"), "build"),
            *("--dkmstree", str(tree), "--sourcetree", str(source.parent)),
            *("--kernelsourcedir", str(kernel.headers_of(place, release))),
            *("-k", release, "-a", "x86_64", "-m", NAME, "-v", VERSION),
        ],
        check=True,
    )
    built = tree / NAME / VERSION / release / "x86_64/module"
    return built / f"{NAME}.ko"
