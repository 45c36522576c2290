# SPDX-License-Identifier: Apache-2.0
"""No line of roles, packages or pages lets root act in directories of Nova's.

Their owner, Nova's user, can replace a name in them by a link while root's
program runs. ``tests/functional/contrib/ansible/test_nova_directories.py``
has the attack.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nova_accel.doctor import registry
from tests.unit.docs import pages

CONTRIB = pages.ROOT / "contrib"
ROLES = sorted(
    path
    for top in ("roles", "playbooks")
    for path in (CONTRIB / "ansible" / top).rglob("*.yml")
    if path.parent.name in ("tasks", "playbooks")
)
SCRIPTS = sorted(
    path
    for top in (CONTRIB, pages.ROOT / "placement_sync/systemd")
    for path in top.rglob("*")
    if path.is_file() and path.suffix not in (".json", ".pyc")
)
_CHANGE = (
    r"(install|mkdir|rmdir|rm|chown|chgrp|chmod|mv|cp|ln|touch|tee|setfacl)"
)
# Debian's nova-common gives both to Nova's user.
_PLACES = r"/(var/lib|etc|var/log)/nova/"
_AS_ROOT = re.compile(rf"\b{_CHANGE}\b[^|;&]*{_PLACES}")
_GIVEN_AWAY = re.compile(r"\b(install\b.* (-o|--owner)|chown|chgrp)\b.*\bnova")
_AS_USER = re.compile(r"\b(runuser -u|sudo -u|setpriv --reuid) ?")


def is_refused(line: str) -> bool:
    """Return whether a line changes Nova's directories as root."""
    acts = _AS_ROOT.search(line) or _GIVEN_AWAY.search(line)
    return bool(acts) and not _AS_USER.search(line)


def list_lines() -> Iterator[tuple[str, str]]:
    """Yield the lines of commands with the place where each is."""
    for page in pages.PAGES:
        for command in pages.console_lines(page.read_text()):
            yield pages.name_of(page), command
    for path in SCRIPTS:
        text = path.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if not line.lstrip().startswith("#"):
                yield pages.name_of(path), line
    for check in registry.list_checks():
        for line in check.remedy.splitlines():
            yield check.name, line


def list_tasks(tasks: Any, user: str = "") -> Iterator[tuple[Any, str]]:
    """Yield tasks, those of blocks included, with their ``become_user``."""
    for task in tasks or ():
        task_user = task.get("become_user", user)
        yield task, task_user
        for key in ("block", "rescue", "always", "tasks"):
            yield from list_tasks(task.get(key), task_user)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("install -d -o nova -g nova -m 0750 /var/lib/nova/accel", True),
        ("install --owner nova -d /srv/accel", True),
        ("chown -R nova: /srv/accel", True),
        ("rm -rf /var/lib/nova/accel", True),
        ("mkdir -p /var/lib/nova/accel/drained", True),
        ("cp nova.conf /etc/nova/nova.conf", True),
        ("mkdir -p /var/lib/nova", False),
        ("runuser -u nova -- mkdir /var/lib/nova/accel", False),
        ("cat /var/lib/nova/compute_id", False),
    ],
)
def test_lines_are_judged(line: str, expected: bool) -> None:
    assert is_refused(line) is expected


def test_no_line_acts_as_root_in_novas_directories() -> None:
    lines = list(list_lines())
    assert len(lines) > 500
    assert [(place, line) for place, line in lines if is_refused(line)] == []


@pytest.mark.parametrize("path", ROLES, ids=pages.name_of)
def test_an_owner_is_set_by_the_owner_only(path: Path) -> None:
    for task, user in list_tasks(yaml.safe_load(path.read_text())):
        for module, values in task.items():
            if module.startswith("ansible.") and isinstance(values, dict):
                is_changed = {"owner", "group"} & values.keys()
                assert user or not is_changed, task["name"]


def test_no_module_of_files_changes_the_state_directory() -> None:
    """Modules follow links; ``command`` runs as Nova's user."""
    for path in ROLES:
        for task, user in list_tasks(yaml.safe_load(path.read_text())):
            for module, values in task.items():
                if "state_dir" not in str(values) or module == "block":
                    continue
                is_read = module in (
                    *("ansible.builtin.stat", "nova_accel.host.manifest"),
                    *("name", "when"),
                )
                is_run = "'runuser'" in str(values)
                assert user or is_read or is_run, (path, task["name"])
