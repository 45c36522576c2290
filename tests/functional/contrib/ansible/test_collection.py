# SPDX-License-Identifier: Apache-2.0
"""The collection is built and installed; ansible-runner runs its playbook.

The playbook of ``nova-accel driver`` is a substitute here: the real one would
change this computer. ``test_roles`` runs that one in a chroot.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from nova_accel import errors
from nova_accel.doctor.ansible import playbook

COLLECTION = pathlib.Path(__file__).resolve().parents[4] / "contrib/ansible"
_PLAYBOOK = """\
- hosts: all
  gather_facts: false
  tasks:
    - name: Write the variables
      ansible.builtin.copy:
        content: "{{ [nova_accel_action, nova_accel_roles, secret] }}"
        dest: "{{ destination }}"
        mode: "0600"
    - name: Find a reboot
      ansible.builtin.set_fact:
        nova_accel_pending: [iommu]
    - name: Fail
      ansible.builtin.command: sh -c 'echo broken >&2; exit 3'
      when: is_failing | default(false)
    - name: End Ansible
      ansible.builtin.shell: kill -KILL 0
      when: is_killed | default(false)
"""


@pytest.fixture
def collections(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """Set directories of Ansible that are empty."""
    place = tmp_path / "collections"
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", str(place))
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path / "home"))
    return place


@pytest.fixture
def destination(
    collections: pathlib.Path, tmp_path: pathlib.Path
) -> pathlib.Path:
    """Install the substitute; return the file that it writes."""
    place = collections / "ansible_collections/nova_accel/host/playbooks"
    place.mkdir(parents=True)
    (place / "driver.yml").write_text(_PLAYBOOK)
    return tmp_path / "written"


def run(
    destination: pathlib.Path, lines: list[str], **options: bool
) -> playbook.PlaybookResult:
    is_check = options.pop("is_check", False)
    return playbook.run(
        "install",
        {"iommu": ["iommu.off"]},
        {"destination": str(destination), "secret": "s3cr3t", **options},
        lines.append,
        is_check=is_check,
    )


def test_a_run_reports_its_changes(destination: pathlib.Path) -> None:
    lines: list[str] = []
    result = run(destination, lines)
    assert result == playbook.PlaybookResult(1, "", ("iommu",))
    assert lines == ["Write the variables: changed"]
    written = json.loads(destination.read_text().replace("'", '"'))
    assert written == ["install", {"iommu": ["iommu.off"]}, "s3cr3t"]


def test_a_failed_task_is_named_with_its_output(
    destination: pathlib.Path,
) -> None:
    result = run(destination, [], is_failing=True)
    assert result.failure.startswith("Fail: ")
    assert "broken" in result.failure


@pytest.mark.long
def test_a_run_that_ends_in_the_middle_is_a_failure(
    destination: pathlib.Path,
) -> None:
    result = run(destination, [], is_killed=True)
    assert result.changed == 1
    assert result.failure


@pytest.mark.long
def test_a_check_changes_nothing(destination: pathlib.Path) -> None:
    lines: list[str] = []
    run(destination, lines, is_check=True)
    assert lines == ["Write the variables: changed"]
    assert not destination.exists()


def test_no_variable_stays_on_the_disk(
    destination: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    run(destination, [])
    assert list(temporary.iterdir()) == []


def test_a_missing_collection_is_named(
    collections: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # That of a wheel would change this computer.
    assert playbook.find_collections() == "", "install it with tox: editable"
    with pytest.raises(playbook.PlaybookError, match="ansible-galaxy"):
        run(tmp_path / "written", [])


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "s3cr3t: : x\n"])
def test_a_file_without_variables_is_refused(
    tmp_path: pathlib.Path, text: str
) -> None:
    path = tmp_path / "variables.yml"
    path.write_text(text)
    with pytest.raises(errors.MalformedError) as raised:
        playbook.read_variables(str(path))
    assert "s3cr3t" not in str(raised.value)


def test_the_collection_can_be_installed(collections: pathlib.Path) -> None:
    galaxy = pathlib.Path(sys.executable).with_name("ansible-galaxy")
    subprocess.run(  # noqa: S603 - no input of users
        [
            *(galaxy, "collection", "install", "--offline"),
            *("-p", collections, COLLECTION),
        ],
        check=True,
        capture_output=True,
        env={**os.environ, "TMPDIR": str(collections.parent)},
    )
    installed = collections / "ansible_collections/nova_accel/host"
    assert (installed / "playbooks/driver.yml").is_file()
    assert (installed / "roles/qat/meta/argument_specs.yml").is_file()
