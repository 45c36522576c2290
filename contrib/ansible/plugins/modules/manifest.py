#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module that reads, extends and undoes a manifest."""

from __future__ import annotations

DOCUMENTATION = r"""
module: manifest
short_description: Read, extend or undo the manifest of a role
description:
  - Record packages, services and values in the manifest of a role.
  - Restore the files that M(nova_accel.host.recorded_file) changed.
version_added: 0.1.0
author:
  - nova-accel contributors (@nova-accel)
options:
  role:
    description: Role whose manifest it is.
    type: str
    required: true
  state:
    description:
      - V(present) records the other options; without any it only reads.
      - V(restored) restores all files and removes created directories.
      - V(absent) removes the manifest.
    type: str
    choices: [present, restored, absent]
    default: present
  packages_before:
    description: All packages before an installation. The list of an
      interrupted installation is kept.
    type: list
    elements: str
  packages_after:
    description: All packages after an installation; those that were not there
      before are recorded.
    type: list
    elements: str
  services:
    description: Services of systemd whose state is about to be changed.
    type: list
    elements: str
    default: []
  values:
    description: Values that the role needs for its removal. A null removes a
      value.
    type: dict
    default: {}
  done:
    description: Pending commands that were run.
    type: list
    elements: str
    default: []
  reboot:
    description: Whether a change takes effect at the next start.
    type: bool
    default: false
  directory:
    description: Directory of the manifests.
    type: path
    default: /var/lib/nova-accel/drivers
"""

EXAMPLES = r"""
- name: Read the manifest of the role qat
  nova_accel.host.manifest:
    role: qat
  register: qat_manifest
"""

RETURN = r"""
boot:
  description: Id of the running boot of the kernel.
  returned: success
  type: str
exists:
  description: Whether the role has changed anything.
  returned: success
  type: bool
manifest:
  description: Content of the manifest.
  returned: success
  type: dict
services:
  description: Recorded services that exist now.
  returned: success
  type: list
  elements: str
"""

import copy

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.nova_accel.host.plugins.module_utils import (
    manifest_file,
    safe_files,
)

# Results of `systemctl is-enabled` of a unit that starts with the host.
ENABLED = ("enabled", "enabled-runtime")


def read_service(module, name):
    """Return whether a service exists, is enabled and is active."""
    _code, enabled, _errors = module.run_command(
        ["systemctl", "is-enabled", name]
    )
    code, _output, _errors = module.run_command(
        ["systemctl", "is-active", "--quiet", name]
    )
    state = enabled.strip()
    return {
        "exists": state not in ("", "not-found"),
        "enabled": state in ENABLED,
        "active": code == 0,
    }


def record(module, manifest):
    """Record the options of the module."""
    parameters, data = module.params, manifest.data
    if parameters["packages_before"] is not None:
        data.setdefault(
            "packages_before", sorted(parameters["packages_before"])
        )
    if parameters["packages_after"] is not None:
        before = data.pop("packages_before", parameters["packages_after"])
        added = set(parameters["packages_after"]) - set(before)
        data["packages"] = sorted({*data["packages"], *added})
    for name in parameters["services"]:
        if name not in data["services"]:
            data["services"][name] = read_service(module, name)
    for key, value in parameters["values"].items():
        data["values"][key] = value
        if value is None:
            del data["values"][key]
    done = parameters["done"]
    data["pending"] = [n for n in data["pending"] if n not in done]
    if parameters["reboot"]:
        manifest.record_boot()


def restore(module, manifest):
    """Restore the files; return whether any changes."""
    changes = manifest.plan_restore(safe_files.read)
    if changes and not module.check_mode:
        manifest.data["pending"] = manifest.data["effects"]
        manifest.save()
        for path, text, mode in changes:
            if text is None:
                safe_files.remove(path)
            else:
                safe_files.replace(path, text, mode)
    if not module.check_mode:
        manifest.remove_directories()
    return bool(changes)


def run(module):
    """Do as the state says; return the result."""
    manifest = manifest_file.Manifest(
        module.params["directory"], module.params["role"]
    )
    state = module.params["state"]
    is_changed = False
    if state == "present":
        before = copy.deepcopy(manifest.data)
        record(module, manifest)
        is_changed = manifest.data != before
        if is_changed and not module.check_mode:
            manifest.save()
    elif state == "restored" and manifest.exists:
        is_changed = restore(module, manifest)
    elif state == "absent" and manifest.exists:
        is_changed = True
        if not module.check_mode:
            manifest.remove()
    return {
        "changed": is_changed,
        "boot": manifest_file.read_boot(),
        "exists": manifest.exists,
        "manifest": manifest.data,
        "services": [
            name
            for name in manifest.data["services"]
            if read_service(module, name)["exists"]
        ],
    }


def main():
    """Run the module."""
    names = {"type": "list", "elements": "str"}
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["present", "restored", "absent"],
                "default": "present",
            },
            "packages_before": names,
            "packages_after": names,
            "services": {**names, "default": []},
            "values": {"type": "dict", "default": {}},
            "done": {**names, "default": []},
            "reboot": {"type": "bool", "default": False},
            "directory": {"type": "path", "default": manifest_file.DIRECTORY},
        },
        supports_check_mode=True,
    )
    manifest_file.exit_module(module, run)


if __name__ == "__main__":
    main()
