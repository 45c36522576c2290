# SPDX-License-Identifier: Apache-2.0
"""The Debian package, built and installed by the commands of the manual."""

import contextlib
import pathlib
import shutil
from collections.abc import Iterator

from tests.functional.contrib.packages import package_root
from tests.support import examples
from tests.unit.docs import pages

# See dpkg-buildpackage(1).
_WITHOUT_TESTS = {
    "DEB_BUILD_OPTIONS": "nocheck",
    "DEB_BUILD_PROFILES": "nocheck",
}
_PAGE = pages.MANUAL / "install/index.rst"


def read_commands(*programs: str) -> list[tuple[str, ...]]:
    """Return the commands of the install page with one of the programs."""
    commands = map(tuple, pages.commands(_PAGE.read_text()))
    return [words for words in commands if words[0] in programs]


@contextlib.contextmanager
def built() -> Iterator[pathlib.Path]:
    """Build the package of the commit that is checked out, and yield it.

    Its own tests and what they need are part of the whole run.
    """
    environment = {} if examples.IS_WHOLE else _WITHOUT_TESTS
    with package_root.PackageRoot("trixie", environment) as root:
        root.copy_commit()
        commands = read_commands("cp", "apt-get", "dpkg-buildpackage")
        assert commands[-1][0] == "dpkg-buildpackage"
        for words in commands:
            root.run(*words, directory="/mnt/source")
        (path,) = root.files.glob("*.deb")
        yield path


def copy(package: pathlib.Path, root: package_root.PackageRoot) -> None:
    """Copy the package to /mnt of a root."""
    shutil.copy(package, root.files)
    (root.files / "source").mkdir()


def install(root: package_root.PackageRoot) -> None:
    """Install the package that is at /mnt."""
    (command,) = read_commands("apt")
    root.run("sh", "-c", " ".join(command), directory="/mnt/source")
