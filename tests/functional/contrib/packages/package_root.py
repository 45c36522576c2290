# SPDX-License-Identifier: Apache-2.0
"""Roots in which packages of this project are built and installed."""

import json
import pathlib
import subprocess
from collections.abc import Callable, Mapping

from tests.functional import test_activation
from tests.functional.contrib import roots

# dpkg-buildpackage expects build-essential without a Build-Depends
_PACKAGES = ("build-essential", "ca-certificates")


def find_loaded_driver(
    files: pathlib.Path, run: Callable[..., str], text: str
) -> str:
    """Return what nova-compute loads with a configuration.

    :param files: directory that is /mnt where ``run`` runs a command.
    :param run: returns the output of a command.
    """
    nova_conf = f"{text}[oslo_concurrency]\nlock_path = /tmp\n"
    (files / "nova.conf").write_text(nova_conf)
    script = test_activation.AS_NOVA_COMPUTE
    output = run("python3", "-c", script, "/mnt/nova.conf")
    return str(json.loads(output.splitlines()[-1])["loaded"])


class PackageRoot(roots.RootDirectory):
    """Root with a compiler."""

    def __init__(
        self, release: str, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(release, "packages", _PACKAGES, environment)

    def copy_commit(self) -> None:
        """Write the commit that is checked out to ``source``."""
        place = self.files / "source"
        place.mkdir()
        archive = subprocess.run(  # noqa: S603
            ["git", "-C", str(roots.REPOSITORY), "archive", "HEAD"],  # noqa: S607
            stdout=subprocess.PIPE,
            check=True,
        )
        subprocess.run(  # noqa: S603
            ["tar", "-C", str(place), "-x"],  # noqa: S607
            input=archive.stdout,
            check=True,
        )
