# SPDX-License-Identifier: Apache-2.0
"""Molecule's scenario of the collection, by the command of its README.

The host of the inventory is the Debian root in which Molecule runs.
"""

import json
import os
import re

import pytest

from tests.functional.contrib.ansible import debian_host

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]

_VENV = "/opt/molecule"


def test_the_scenario_installs_verifies_and_removes() -> None:
    with debian_host.DebianHost() as host:
        host.run("apt-get", "install", "python3-venv")
        host.run("python3", "-m", "venv", "--system-site-packages", _VENV)
        constraints = ("-c", "/run/src/tests/constraints.txt")
        pip = (f"{_VENV}/bin/pip", "install", "--no-cache-dir")
        host.run(*pip, *constraints, "molecule")
        host.write("/root/hosts.ini", "localhost ansible_connection=local\n")
        variables = {"nova_accel_roles": ["vfio", "dfl_opae"]}
        host.write("/root/plan.yml", json.dumps(variables))
        files = host.list_files()
        text = (debian_host.COLLECTION / "README.md").read_text()
        (command,) = re.findall(r"^    (NOVA_.* molecule test)$", text, re.M)
        done = host.execute(
            *("sh", "-c", f"PATH={_VENV}/bin:$PATH {command}"),
            directory=debian_host.PLACE,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-4000:]
        assert "[default > idempotence] Executed: Successful" in output
        assert host.list_files() == files
