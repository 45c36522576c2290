# SPDX-License-Identifier: Apache-2.0
"""cloud-init of Debian runs the script of a guest.

Debian is unpacked by mmdebstrap, and cloud-init runs in it by chroot, from a
config drive as Nova writes it. systemctl is fake, and so is the list of PCI
devices.
"""

import json
import os
import pathlib
import shutil
import stat
import subprocess

import pytest

from placement_sync.licenses import guest_script, tokens
from tests.support import license_tokens

TOKEN = tokens.Token(path="t", text=license_tokens.build())
GPU, OTHER = "0028\t10de1eb8\t2a\n", "0010\t1af41000\t2a\n"
USER_DATA = """\
#cloud-config
write_files: [{path: /root/of-the-user, content: x}]
runcmd: [[touch, /root/command-of-the-user]]
"""
SYSTEMCTL = '#!/bin/sh\necho "$@" >> /var/log/systemctl\n'
# Mounts are those of a namespace of its own.
RUN = """
set -e
mount -t proc proc "$1/proc"
mount --bind "$1/devices" "$1/proc/bus/pci/devices"
mount -t tmpfs tmpfs "$1/run"
exec chroot "$1" sh -c '
PATH=/usr/local/bin:$PATH
cloud-init init --local
cloud-init init
cloud-init modules --mode=config
cloud-init modules --mode=final
true'
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.getuid() != 0 or not shutil.which("apt-get"),
        reason="needs root and apt",
    ),
]


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the root of a Debian with cloud-init."""
    place = tmp_path_factory.mktemp("debian")
    place.chmod(0o755)
    fields = "$(REPO_URI) $(SUITE)"
    listed = run(
        place, "apt-get", "indextargets", "--format", fields, "Created-By:"
        " Packages",
    )  # fmt: skip
    sources = [line.split() for line in sorted(listed.splitlines())]
    # Neither updates nor other repositories.
    main = next(s for s in sources if s[1].isalpha() and "debian" in s[0])
    run(place, "apt-get", "download", "mmdebstrap")
    (package,) = place.glob("mmdebstrap_*.deb")
    run(place, "dpkg", "-x", str(package), "tool")
    run(
        place,
        *("tool/usr/bin/mmdebstrap", "--mode=root", "--variant=apt"),
        *("--include=cloud-init", main[1], "root", main[0]),
    )
    return place / "root"


def run(place: pathlib.Path, *words: str) -> str:
    return subprocess.run(  # noqa: S603 - our own words
        words,
        cwd=place,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    ).stdout


def boot(
    debian: pathlib.Path, root: pathlib.Path, devices: str, user_data: str = ""
) -> None:
    """Run cloud-init in a copy of Debian, as at the first start."""
    run(debian, "cp", "-a", str(debian), str(root))
    (root / "devices").write_text(devices)
    (root / "usr/local/bin/systemctl").write_text(SYSTEMCTL)
    (root / "usr/local/bin/systemctl").chmod(0o755)
    (root / "etc/cloud/cloud.cfg.d/99.cfg").write_text(
        "datasource_list: [ConfigDrive]\n"
    )
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
    run(root, "unshare", "--mount", "sh", "-c", RUN, "run", str(root))
    for log in (root / "var/log").glob("cloud-init*"):
        assert license_tokens.SECRET not in log.read_text()


@pytest.mark.parametrize("user_data", ["", USER_DATA])
def test_a_guest_with_a_gpu_gets_the_token(
    debian: pathlib.Path, tmp_path: pathlib.Path, user_data: str
) -> None:
    """A user's own cloud-config replaces nothing of it."""
    root = tmp_path / "guest"
    boot(debian, root, GPU, user_data)
    nvidia = root / "etc/nvidia"
    (token,) = (nvidia / "ClientConfigToken").iterdir()
    assert token.read_text() == TOKEN.text
    assert stat.S_IMODE(token.stat().st_mode) == 0o744
    assert (nvidia / "gridd.conf").read_text() == "FeatureType=1\n"
    calls = (root / "var/log/systemctl").read_text().splitlines()
    assert "restart nvidia-gridd.service" in calls
    assert (root / "root/of-the-user").exists() is bool(user_data)
    assert (root / "root/command-of-the-user").exists() is bool(user_data)


def test_a_guest_without_a_gpu_gets_no_file(
    debian: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = tmp_path / "guest"
    boot(debian, root, OTHER)
    # cloud-init has run the script.
    assert list(root.glob("var/lib/cloud/instances/s1/scripts/vendor/*"))
    assert not (root / "etc/nvidia").exists()
