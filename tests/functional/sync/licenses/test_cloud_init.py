# SPDX-License-Identifier: Apache-2.0
"""cloud-init of Debian runs the script of a guest, from a config drive.

``tests/functional/nova/spawn/test_vendordata.py`` has Nova's metadata service.
"""

import json
import pathlib
import shutil
import socket
import stat

import pytest

from placement_sync.licenses import guest_script, tokens
from tests.support.licenses import debian_guest, license_tokens

TOKEN = tokens.Token(path="t", text=license_tokens.build())
USER_DATA = """\
#cloud-config
write_files: [{path: /root/of-the-user, content: x}]
runcmd: [[touch, /root/command-of-the-user]]
"""

pytestmark = pytest.mark.long


def boot(
    debian: pathlib.Path, root: pathlib.Path, devices: str, user_data: str = ""
) -> debian_guest.Guest:
    """Return a guest with a config drive as Nova writes it, booted once."""
    guest = debian_guest.Guest.copy(debian, root, devices, ConfigDrive={})
    drive = root / "var/lib/cloud/seed/config_drive/openstack/2018-08-27"
    drive.mkdir(parents=True)
    script = guest_script.build_script(TOKEN)
    for name, content in (
        ("meta_data.json", {"uuid": "s1", "hostname": "h", "name": "h"}),
        ("vendor_data.json", {}),
        ("vendor_data2.json", {"static": {}, "cloud-init": script}),
    ):
        (drive / name).write_text(json.dumps(content))
    (drive / "user_data").write_text(user_data)
    shutil.copytree(drive, drive.with_name("latest"))
    hostname = socket.gethostname()
    guest.boot()
    # The guest renames itself, and not this computer.
    assert socket.gethostname() == hostname
    assert license_tokens.SECRET not in guest.read_logs()
    return guest


@pytest.mark.parametrize("user_data", ["", USER_DATA])
def test_a_guest_with_a_gpu_gets_the_token(
    debian: pathlib.Path, tmp_path: pathlib.Path, user_data: str
) -> None:
    """A user's own cloud-config replaces nothing of it."""
    root = tmp_path / "guest"
    guest = boot(debian, root, debian_guest.GPU, user_data)
    (token,) = guest.list_tokens()
    assert token.read_text() == TOKEN.text
    assert stat.S_IMODE(token.stat().st_mode) == 0o744
    assert (root / "etc/nvidia/gridd.conf").read_text() == "FeatureType=1\n"
    assert "restart nvidia-gridd.service" in guest.read_systemctl_calls()
    assert (root / "root/of-the-user").exists() is bool(user_data)
    assert (root / "root/command-of-the-user").exists() is bool(user_data)


def test_a_guest_without_a_gpu_gets_no_file(
    debian: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    guest = boot(debian, tmp_path / "guest", debian_guest.OTHER)
    assert guest.list_vendor_scripts()
    assert not (guest.root / "etc/nvidia").exists()
