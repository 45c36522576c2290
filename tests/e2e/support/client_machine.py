# SPDX-License-Identifier: Apache-2.0
"""Machines on which people run ``openstack accel`` against the lab."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from tests.e2e.support.site import Site
from tests.e2e.support.vm_site import REPOSITORY
from tests.lab.cloud import settings
from tests.lab.cloud.installations import CONSTRAINTS, find_wheel, run_uv
from tests.lab.cloud.layout import Layout
from tests.lab.cloud.processes import run

#: A user without any rights but those of a member of a project.
MEMBER = "alice"
_PAGE = REPOSITORY / "doc/source/admin/fleet.rst"
_PASSWORD = "not-a-secret"  # noqa: S105
# An overlay, so that the machine's own /etc stays as it is.
_WITH_CONFIGURATION = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" &&
mount -t overlay -o lowerdir=/etc,upperdir="$1/upper",workdir="$1/work" \
    overlay /etc &&
mkdir -p /etc/nova && cp "$2" /etc/nova/nova.conf && shift 2 && exec "$@"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientMachine:
    """An installation of ``openstack``, and the clouds that it knows."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]

    def run(self, *words: str, user: str = "admin") -> Any:
        """Run ``openstack`` as a user; return its end."""
        argv = [*self.argv, "--os-cloud", user, *words]
        return run(argv, self.environment)


def install_laptop(lab: Site, place: pathlib.Path) -> ClientMachine:
    """Install what the manual's page says, and no more.

    The command is that of the page; its wheel is that of the lab.
    """
    layout = lab.layout
    python = str(place / "venv/bin/python")
    run_uv(layout, "venv", "-q", place / "venv")
    (package,) = re.findall(r'\$ pip install "(.*)"', _PAGE.read_text())
    run_uv(
        layout,
        *("pip", "install", "-q", "--python", python),
        *("--constraint", CONSTRAINTS),
        package.replace("$WHEEL", find_wheel(layout).as_uri()),
    )
    return ClientMachine(
        name="laptop",
        argv=(str(place / "venv/bin/openstack"),),
        environment=_write_clouds(layout, place),
    )


def use_controller(lab: Site, place: pathlib.Path) -> ClientMachine:
    """Return a machine that has Nova, and its nova.conf in /etc/nova."""
    return ClientMachine(
        name="controller",
        argv=(
            *("unshare", "--mount", "sh", "-c", _WITH_CONFIGURATION, "sh"),
            *(str(place), str(lab.layout.etc / "nova.conf")),
            lab.layout.program("openstack"),
        ),
        environment=_write_clouds(lab.layout, place),
    )


def create_member(lab: Site) -> None:
    """Create a project of the member's name, and the member in it."""
    identity = lab.api.identity
    project = identity.create_project(name=MEMBER, domain_id="default")
    user = identity.create_user(
        name=MEMBER, password=_PASSWORD, domain_id="default"
    )
    role = identity.find_role("member")
    identity.assign_project_role_to_user(project, user, role)


def delete_member(lab: Site) -> None:
    """Delete what ``create_member`` created."""
    identity = lab.api.identity
    identity.delete_user(identity.find_user(MEMBER))
    identity.delete_project(identity.find_project(MEMBER))


def _write_clouds(layout: Layout, place: pathlib.Path) -> dict[str, str]:
    """Write clouds.yaml; return the environment that names it."""
    member = {"username": MEMBER, "project_name": MEMBER}
    clouds = {"admin": {}, MEMBER: {**member, "password": _PASSWORD}}
    path = place.parent / f"{place.name}-clouds.yaml"
    path.write_text(settings.clouds_yaml(layout, clouds))
    environment = {
        name: value
        for name, value in layout.client_environment().items()
        if not name.startswith("OS_")
    }
    return environment | {
        "OS_CLIENT_CONFIG_FILE": str(path),
        "PYTHONWARNINGS": "ignore",
    }
