# SPDX-License-Identifier: Apache-2.0
"""One run of the collection's playbook on this host, by ansible-runner."""

import contextlib
import dataclasses
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import ansible_runner
import yaml

from nova_accel import errors

_PLAYBOOK = "nova_accel.host.driver"
# The distribution's Python has the modules of its package manager.
_INVENTORY = (
    "localhost ansible_connection=local"
    " ansible_python_interpreter=/usr/bin/python3\n"
)
_FAILURES = ("runner_on_failed", "runner_on_unreachable")
_INSTALL = (
    "install nova-accel from its wheel, or the collection: ansible-galaxy"
    " collection install contrib/ansible/ in a source tree of nova-accel"
)
_SHARE = "share/nova-accel"
# The file by which the installed collection is known.
_FILE = "ansible_collections/nova_accel/host/playbooks/driver.yml"
_PATH_VARIABLE = "ANSIBLE_COLLECTIONS_PATH"
# Ansible's default (COLLECTIONS_PATHS in its base.yml).
_DEFAULT_PATH = "~/.ansible/collections:/usr/share/ansible/collections"

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class PlaybookResult:
    """Result of a run.

    ``failure`` is the first failed task with its message, empty for none.
    ``pending`` are the roles that need a reboot.
    """

    changed: int
    failure: str = ""
    pending: tuple[str, ...] = ()


class PlaybookError(errors.AcceleratorError):
    """Ansible did not begin.

    :param reason: the cause and what to do.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"Ansible: {reason}", reason)
        self.reason = reason


def find_collections() -> str:
    """Return the directory of collections that was installed with this file.

    Empty for an editable installation, which has no such files. A wheel's
    are in the list of its files, a distribution's below the prefix of its
    Python.
    """
    paths = [os.path.join(sys.prefix, _SHARE, _FILE)]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nova-accel") or ():
            if str(file).endswith(f"{_SHARE}/{_FILE}"):
                paths.insert(0, os.path.realpath(file.locate()))
    path = next(filter(os.path.isfile, paths), "")
    return path.removesuffix(f"/{_FILE}")


def _build_environment() -> dict[str, str]:
    """Return variables: the programs of this Python, and the collections.

    The operator's own path precedes.
    """
    programs = os.path.dirname(sys.executable)
    variables = {
        "PATH": os.pathsep.join((programs, os.environ.get("PATH", os.defpath)))
    }
    if own := find_collections():
        path = os.environ.get(_PATH_VARIABLE)
        places = (path, own) if path else (own, _DEFAULT_PATH)
        variables[_PATH_VARIABLE] = os.pathsep.join(places)
    return variables


def read_variables(path: str) -> Mapping[str, Any]:
    """Return the variables in a file of YAML or JSON.

    :raises MalformedError: it can't be read, or is no mapping.
    """
    expected = "a file of YAML or JSON with the variables of the roles"
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        # The text of a YAMLError quotes the file, which may hold secrets.
        is_quoted = isinstance(error, yaml.YAMLError)
        cause = type(error).__name__ if is_quoted else str(error)
        cause = getattr(error, "strerror", None) or cause
        raise errors.MalformedError(
            "file of variables", path, f"{expected} ({cause})"
        ) from None
    if not isinstance(content, dict):
        raise errors.MalformedError("file of variables", path, expected)
    return content


class _RunEvents:
    """Events of a run: reports changes, keeps the first failure."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.changed, self.failure = 0, ""
        self.has_begun = False
        self.pending: tuple[str, ...] = ()

    def handle(self, event: Mapping[str, Any]) -> bool:
        """Handle an event; return False, as its file is not needed."""
        data = event.get("event_data", {})
        result = data.get("res") or {}
        role = str(data.get("role", "")).rpartition(".")[2]
        task = str(data.get("task", ""))
        title = f"{role}: {task}" if role else task
        self.has_begun |= event.get("event") == "runner_on_start"
        if event.get("event") == "runner_on_ok":
            facts = result.get("ansible_facts") or {}
            if "nova_accel_pending" in facts:
                self.pending = tuple(facts["nova_accel_pending"])
            if result.get("changed"):
                self.changed += 1
                self._report(f"{title}: changed")
        elif event.get("event") in _FAILURES and not data.get("ignore_errors"):
            self.failure = self.failure or f"{title}: {_describe(result)}"
        return False


def _describe(result: Mapping[str, Any]) -> str:
    """Return the message of a failed task, with that of its program."""
    items = [r for r in result.get("results", ()) if r.get("failed")]
    failed = items[0] if items else result
    words = (
        failed.get("msg") or failed.get("censored"),
        failed.get("stderr"),
    )
    return " ".join(" ".join(str(w).split()) for w in words if w)


def run(
    action: str,
    roles: Mapping[str, list[str]],
    variables: Mapping[str, Any],
    report: Report,
    *,
    is_check: bool = False,
) -> PlaybookResult:
    """Run an action of roles on this host.

    :param action: ``install``, ``verify`` or ``remove``.
    :param variables: variables of the operator. They are stored in a
        directory that only this user can read, and that is removed.
    :param report: called with a line for each change.
    :param is_check: change nothing; report what would change.
    :raises PlaybookError: Ansible did not begin.
    """
    progress = _RunEvents(report)
    extra = {
        **variables,
        "nova_accel_action": action,
        "nova_accel_roles": dict(roles),
    }
    with tempfile.TemporaryDirectory(prefix="nova-accel.") as directory:
        runner = ansible_runner.run(
            private_data_dir=directory,
            playbook=_PLAYBOOK,
            inventory=_INVENTORY,
            extravars=extra,
            envvars=_build_environment(),
            cmdline="--check" if is_check else None,
            event_handler=progress.handle,
            quiet=True,
        )
        if runner.rc and not progress.failure:
            reason = _explain(runner.status, runner.stdout.read())
            if not progress.has_begun:
                raise PlaybookError(reason)
            progress.failure = reason
    return PlaybookResult(progress.changed, progress.failure, progress.pending)


def _explain(status: str, output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    if any("could not be found" in line for line in lines):
        return f"{_PLAYBOOK} is not installed; {_INSTALL}"
    return f"{status}: {lines[-1] if lines else 'no output'}"
