# SPDX-License-Identifier: Apache-2.0
"""Debian 13 with Ansible and this collection in it.

The roles, Ansible, APT, dpkg, GRUB's and initramfs-tools' programs are real,
but for grub-probe, which can't read an overlay.
"""

import configparser
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.functional.contrib import roots

COLLECTION = roots.REPOSITORY / "contrib/ansible"
MANIFESTS = "/var/lib/nova-accel/drivers"
_PACKAGES = (
    *("ansible-core", "ca-certificates", "grub2-common", "initramfs-tools"),
    *("kmod", "python3-apt", "python3-cliff", "python3-lxml", "systemd"),
    *("python3-os-resource-classes", "python3-os-traits"),
    *("python3-oslo.config", "python3-pyudev"),
    "python3-ansible-runner",
)
_COLLECTIONS = "/run/collections"
#: the collection in the root
PLACE = f"{_COLLECTIONS}/ansible_collections/nova_accel/host"
_ENVIRONMENT = {
    "ANSIBLE_COLLECTIONS_PATH": _COLLECTIONS,
    "ANSIBLE_LOCALHOST_WARNING": "false",
    "ANSIBLE_NOCOLOR": "true",
    "ANSIBLE_PIPELINING": "true",
    "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
    "ANSIBLE_REMOTE_TMP": "/run/ansible",
    "PATH": f"/mnt/bin:{roots.PATH}",
}
_DOCTOR = """\
#!/bin/sh
export PYTHONPATH=/run/src:/mnt/metadata PYTHONDONTWRITEBYTECODE=1
exec python3 -m nova_accel.cli.commands "$@"
"""
# Substitute that names a device of a kind that each GRUB can read.
_GRUB_PROBE = """\
#!/bin/sh
case "$*" in
*--target=device*) echo /dev/sda1 ;;
*--target=fs_uuid*) echo 0c6f0f9e-0000-4000-8000-000000000000 ;;
*--target=fs*) echo ext2 ;;
*--target=drive*) echo '(hd0,msdos1)' ;;
*--target=partmap*) echo msdos ;;
esac
"""


@dataclasses.dataclass(frozen=True, slots=True)
class PlayResult:
    """Result of a run of the playbook."""

    status: int
    output: str

    @property
    def changed(self) -> int:
        """Return the number of tasks that changed something."""
        recap = self.output.rpartition("PLAY RECAP")[2]
        return int(recap.partition("changed=")[2].split()[0])


class DebianHost(roots.RootDirectory):
    """Host that the roles change."""

    def __init__(self) -> None:
        super().__init__("trixie", "ansible", _PACKAGES, _ENVIRONMENT)
        self._write_programs()
        probe = self.files / "bin/grub-probe"
        self.mount(probe, "/usr/sbin/grub-probe")
        self.mount(roots.REPOSITORY, "/run/src")
        self.mount(COLLECTION, PLACE)
        # Debian's GRUB writes its menu there.
        self.write("/boot/grub/grub.cfg", "")

    def _write_programs(self) -> None:
        """Write ``nova-accel`` with its entry points, and ``grub-probe``."""
        (self.files / "bin").mkdir()
        for name, text in (
            ("nova-accel", _DOCTOR),
            ("grub-probe", _GRUB_PROBE),
        ):
            program = self.files / "bin" / name
            program.write_text(text)
            program.chmod(0o755)
        setup = configparser.ConfigParser()
        setup.read(roots.REPOSITORY / "setup.cfg")
        metadata = self.files / "metadata/nova_accel-0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Name: nova-accel\nVersion: 0\n")
        group = "nova_accel.commands"
        lines = setup["options.entry_points"][group]
        (metadata / "entry_points.txt").write_text(f"[{group}]{lines}\n")

    def play(
        self,
        action: str,
        role: str,
        variables: Mapping[str, Any],
        *options: str,
    ) -> PlayResult:
        """Run an action of a role; options are those of Ansible."""
        extra = {
            **variables,
            "nova_accel_action": action,
            "nova_accel_roles": [role],
        }
        done = self.execute(
            *("ansible-playbook", "nova_accel.host.driver"),
            *("-i", "localhost,", "-c", "local", "-e", json.dumps(extra)),
            *options,
        )
        return PlayResult(done.returncode, done.stdout + done.stderr)

    def list_packages(self) -> Sequence[str]:
        """Return the installed packages with their versions and states."""
        form = "${Package} ${Version} ${db:Status-Abbrev}\n"
        return self.run("dpkg-query", "-W", "-f", form).splitlines()
