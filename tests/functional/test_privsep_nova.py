# SPDX-License-Identifier: Apache-2.0
"""Privileged writes through Nova's own privsep daemon."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
UUID = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"

# The client gives its rights up once the daemon runs; what it can do then,
# it does through the daemon. Printed: errno of a write of its own, of the
# same through the daemon, and the daemon's answer to a bad argument.
CLIENT = """
import os, sys
from oslo_config import cfg
from oslo_privsep import priv_context
from nova import privsep
from nova_accel.host import privileged

root, helper = sys.argv[1:]
cfg.CONF([], project="nova")
cfg.CONF.set_override("helper_command", helper, group="nova_sys_admin")
privsep.sys_admin_pctxt.start(priv_context.Method.ROOTWRAP)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
own = privileged._write(root + "/sys/class/mdev_bus/mtty"
    "/mdev_supported_types/mtty-1/create", "by itself")
uuid = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
through = privileged.create_mdev(root, "mtty", "mtty-1", uuid)
gone = privileged.remove_mdev(root, uuid)
try:
    privileged.write_create(root, "..", "..", uuid)
except Exception as error:
    bad = str(error)
print(own, through, gone, bad, sep="|")
"""


def helper() -> str:
    """Return the path of privsep's helper, empty if there is none."""
    beside = Path(sys.executable).parent / "privsep-helper"
    found = shutil.which("privsep-helper")
    return str(beside) if beside.exists() else found or ""


@pytest.mark.skipif(os.geteuid() != 0, reason="the daemon needs root")
@pytest.mark.skipif(not helper(), reason="there is no privsep-helper")
def test_nova_s_daemon_writes_for_a_process_without_rights(
    tmp_path: Path,
) -> None:
    create = (
        tmp_path / "sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create"
    )
    create.parent.mkdir(parents=True)
    create.touch(0o600)
    for directory in [tmp_path, *tmp_path.parents]:
        if directory.owner() == "root" and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o055)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", "-c", CLIENT, tmp_path, helper()],
        env=os.environ
        | {"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own, through, gone, bad = done.stdout.strip().split("|")
    assert int(own) == errno.EACCES
    assert int(through) == 0
    assert create.read_text() == UUID
    assert int(gone) == errno.ENOENT
    assert "'..' is not a mdev parent" in bad
