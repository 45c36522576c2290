# SPDX-License-Identifier: Apache-2.0
"""Installations of Nova with the library in it: the lab's own, and others."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tests.lab.cloud.layout import Layout
from tests.lab.cloud.processes import LabError, run

#: Versions with which the lab is tested.
CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
#: What the control plane and nova-compute need beside Nova.
_REQUIREMENTS = ("PyMySQL", "waitress")
#: Distributions that an older Nova takes in an older version.
_FREE = ("nova==", "openstack-placement==", "oslo-policy==")
_VERSION = "from nova.objects import service; print(service.SERVICE_VERSION)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Directory of the programs of a Nova, and how to run them.

    ``prefix`` comes before a command that is to run there. ``activation`` is
    how the library is switched on, one of ``options.ACTIVATIONS``; empty for
    the lab's choice.
    """

    programs: Path
    prefix: tuple[str, ...] = ()
    activation: str = ""

    def argv(self, program: str, *arguments: str) -> list[str]:
        """Return the command that runs a program."""
        return [*self.prefix, str(self.programs / program), *arguments]

    def service_version(self) -> int:
        """Return the number of the release that Nova's services report.

        :raises LabError: Nova can't be imported.
        """
        done = run(self.argv("python3", "-c", _VERSION))
        if done.returncode:
            raise LabError(f"{self.programs}: {done.stderr}")
        return int(done.stdout.split()[-1])


def find_own(layout: Layout) -> Installation:
    """Return the installation in the lab's virtual environment."""
    return Installation(programs=layout.venv / "bin")


def install_release(layout: Layout, version: str) -> Installation:
    """Install a release of Nova from PyPI, and the lab's wheel, once.

    :raises LabError: it can't be installed.
    """
    place = layout.cache / f"nova-{version}"
    complete = place / "complete"
    if not complete.exists():
        run_uv(layout, "venv", "--clear", str(place))
        lines = CONSTRAINTS.read_text().splitlines(keepends=True)
        constraints = place / "constraints.txt"
        constraints.write_text(
            "".join(line for line in lines if not line.startswith(_FREE))
        )
        pinned = ("--constraint", str(constraints), f"nova=={version}")
        library = f"{find_wheel(layout)}[compute]"
        _install(layout, place, (*pinned, *_REQUIREMENTS, library))
        complete.touch()
    _install(layout, place, ("--no-deps", "--reinstall", find_wheel(layout)))
    return Installation(programs=place / "bin")


def _install(layout: Layout, place: Path, words: Sequence[str | Path]) -> None:
    python = str(place / "bin/python")
    run_uv(layout, "pip", "install", "--python", python, *words)


def find_wheel(layout: Layout) -> Path:
    """Return the wheel of the library that the lab runs."""
    (wheel,) = (layout.lab / "wheel").glob("*.whl")
    return wheel


def run_uv(layout: Layout, *words: str | Path) -> None:
    """Run the lab's uv.

    :raises LabError: it fails.
    """
    argv = [layout.program("uv"), *map(str, words)]
    done = run(argv)
    if done.returncode:
        raise LabError(f"{' '.join(argv)}: {done.stderr}")
