# SPDX-License-Identifier: Apache-2.0
"""Nova's user gains nothing by links while root installs or removes.

The user and the directories are those of Debian's nova-common, which gives
``/etc/nova`` to Nova's user, too. A program of that user replaces names by
links while the role, or a command of the install page, runs.
"""

import os
import shlex
from collections.abc import Iterator

import pytest

from tests.functional.contrib.ansible import debian_host
from tests.unit.docs import pages

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]

_STATE = "/var/lib/nova/accel"
# Links the state directory to /etc when the manifest is written for the
# second time: for the options, then for the directory, which was missing.
_LINK_DIRECTORY = f"""\
import os
seen = set()
while len(seen) < 2:
    try:
        seen.add(os.stat("{debian_host.MANIFESTS}/nova_accel.json").st_ino)
    except FileNotFoundError:
        continue
os.symlink("/etc", "{_STATE}")
"""
# Replaces each temporary file in the directory of nova.conf by a link to a
# file of root.
_LINK_TEMPORARY = """\
import os
SPARE = "/etc/nova/spare"
os.symlink("/etc/hosts.allow", SPARE)
while True:
    for name in os.listdir("/etc/nova"):
        if name.startswith("."):
            try:
                os.replace(SPARE, "/etc/nova/" + name)
            except FileNotFoundError:
                continue
            os.symlink("/etc/hosts.allow", SPARE)
"""
_AS_NOVA = "runuser -u nova -- python3 /mnt/attack.py &"
_PLAY = (
    "ansible-playbook nova_accel.host.driver -i localhost, -c local"
    ' -e nova_accel_action={} -e \'{{"nova_accel_roles": ["nova_accel"]}}\''
)
_STATUS = "stat -c '%U:%a' /etc /etc/hosts.allow"


@pytest.fixture
def host() -> Iterator[debian_host.DebianHost]:
    with debian_host.DebianHost() as host:
        host.run("useradd", "--system", "--home", "/var/lib/nova", "nova")
        for mode, place in (("0755", "/var/lib/nova"), ("0750", "/etc/nova")):
            options = ("-d", "-o", "nova", "-g", "nova", "-m", mode)
            host.run("install", *options, place)
        host.run("sh", "-c", "echo '[DEFAULT]' > /etc/nova/nova.conf")
        host.run("sh", "-c", "echo none > /etc/hosts.allow")
        host.run("chown", "nova:nova", "/etc/nova/nova.conf")
        yield host


def attack(host: debian_host.DebianHost, program: str, command: str) -> str:
    """Run a command of root while Nova's user runs a program.

    :returns: owners and modes of /etc and of root's file after it.
    """
    (host.files / "attack.py").write_text(program)
    script = f"{_AS_NOVA}\nattacker=$!\n{command} >&2\nkill $attacker"
    host.run("sh", "-c", f"{script}\n{_STATUS}\ncat /etc/hosts.allow")
    return host.run("sh", "-c", f"{_STATUS}; cat /etc/hosts.allow")


_UNTOUCHED = "root:755\nroot:644\nnone\n"


def test_the_state_directory_belongs_to_novas_user(
    host: debian_host.DebianHost,
) -> None:
    play = host.play("install", "nova_accel", {})
    assert play.status == 0, play.output
    state = host.run("stat", "-c", "%U:%G:%a", _STATE)
    assert state == "nova:nova:750\n"
    remove = host.play("remove", "nova_accel", {})
    assert remove.status == 0, remove.output
    assert host.execute("stat", _STATE).returncode


@pytest.mark.parametrize("program", [_LINK_DIRECTORY, _LINK_TEMPORARY])
def test_an_installation_follows_no_link(
    host: debian_host.DebianHost, program: str
) -> None:
    assert attack(host, program, _PLAY.format("install")) == _UNTOUCHED


def test_a_removal_follows_no_link(host: debian_host.DebianHost) -> None:
    install = host.play("install", "nova_accel", {})
    assert install.status == 0, install.output
    play = _PLAY.format("remove")
    assert attack(host, _LINK_TEMPORARY, play) == _UNTOUCHED
    host.run("runuser", "-u", "nova", "--", "ln", "-s", "/etc", _STATE)
    host.play("remove", "nova_accel", {})
    assert host.run("test", "-d", "/etc") == ""


def test_commands_of_the_page_follow_no_link(
    host: debian_host.DebianHost,
) -> None:
    text = (pages.MANUAL / "install/index.rst").read_text()
    commands = [c for c in pages.commands(text) if _STATE in c]
    assert commands
    host.run("runuser", "-u", "nova", "--", "ln", "-s", "/etc", _STATE)
    for words in commands:
        host.execute(*words)
    assert host.run("sh", "-c", _STATUS).startswith("root:755\n")


def test_a_linked_nova_conf_is_refused(host: debian_host.DebianHost) -> None:
    host.run("rm", "/etc/nova/nova.conf")
    link = ("ln", "-s", "/etc/shadow", "/etc/nova/nova.conf")
    host.run("runuser", "-u", "nova", "--", *link)
    before = host.run("sha256sum", "/etc/shadow")
    play = host.play("install", "nova_accel", {})
    assert play.status != 0
    assert "is a link in a directory of another user" in play.output
    assert host.run("sha256sum", "/etc/shadow") == before
    assert shlex.split(host.run("readlink", link[-1])) == ["/etc/shadow"]
