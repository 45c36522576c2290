#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module that changes a file and records the change."""

from __future__ import annotations

DOCUMENTATION = r"""
module: recorded_file
short_description: Change a file and record the change in a manifest
description:
  - Write a file, append a block to it, or make some of its lines comments.
  - The manifest of the role is written first, so that
    M(nova_accel.host.manifest) can undo the change.
  - A file that has the text already is neither changed nor recorded.
version_added: 0.1.0
author:
  - nova-accel contributors (@nova-accel)
options:
  role:
    description: Role that makes the change.
    type: str
    required: true
  path:
    description: Absolute path of the file.
    type: path
    required: true
  content:
    description: Text of a file that is the role's own.
    type: str
  block:
    description: Lines at the end of a file of another package.
    type: str
  part:
    description: Name of the block, where a role has several in one file.
    type: str
    default: ""
  disable:
    description: Regular expression at the beginning of lines that become
      comments, in a file of another package. An absent file has none.
    type: str
  mode:
    description: Mode of a new file.
    type: str
    default: "0644"
  effects:
    description: Commands that have to follow the change.
    type: list
    elements: str
    choices: [boot_loader, initramfs, modules, udev]
    default: []
  reboot:
    description: Whether the change takes effect at the next start.
    type: bool
    default: false
  directory:
    description: Directory of the manifests.
    type: path
    default: /var/lib/nova-accel/drivers
"""

EXAMPLES = r"""
- name: Keep nouveau from being loaded
  nova_accel.host.recorded_file:
    role: blacklist
    path: /etc/modprobe.d/nova-accel-blacklist.conf
    content: |
      blacklist nouveau
    effects: [initramfs]
    reboot: true
"""

RETURN = r"""
path:
  description: Path of the file.
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.nova_accel.host.plugins.module_utils import (
    manifest_file,
    safe_files,
)

FORMS = ["content", "block", "disable"]


def build_text(parameters, role, before):
    """Return the text that a file gets, None if it stays absent."""
    if parameters["content"] is not None:
        return parameters["content"]
    if parameters["block"] is not None:
        return manifest_file.set_block(
            before or "", role, parameters["block"], parameters["part"]
        )
    if before is None:
        return None
    return manifest_file.disable_lines(before, role, parameters["disable"])


def record(manifest, parameters, before, mode, text):
    """Record the change of a file, before it is made."""
    path = parameters["path"]
    if before is None or parameters["content"] is not None:
        manifest.record_file(path, before, mode, text)
    else:
        manifest.record_edit(path)
    manifest.record_effects(parameters["effects"])
    if parameters["reboot"]:
        manifest.record_boot()
    manifest.save()


def run(module):
    """Change the file; return the result."""
    parameters = module.params
    path = parameters["path"]
    if not os.path.isabs(path):
        raise manifest_file.ManifestError(f"{path} is no absolute path")
    manifest = manifest_file.Manifest(
        parameters["directory"], parameters["role"]
    )
    before, mode = safe_files.read(path)
    if before is None:
        mode = int(parameters["mode"], 8)
    text = build_text(parameters, manifest.role, before)
    result = {
        "changed": text != before,
        "path": path,
        "diff": manifest_file.build_diff(path, before, text),
    }
    if result["changed"] and not module.check_mode:
        record(manifest, parameters, before, mode, text)
        safe_files.replace(path, text, mode)
    return result


def main():
    """Run the module."""
    text = {"type": "str"}
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "content": text,
            "block": text,
            "disable": text,
            "part": {"type": "str", "default": ""},
            "mode": {"type": "str", "default": "0644"},
            "effects": {
                "type": "list",
                "elements": "str",
                "choices": ["boot_loader", "initramfs", "modules", "udev"],
                "default": [],
            },
            "reboot": {"type": "bool", "default": False},
            "directory": {"type": "path", "default": manifest_file.DIRECTORY},
        },
        mutually_exclusive=[FORMS],
        required_one_of=[FORMS],
        supports_check_mode=True,
    )
    manifest_file.exit_module(module, run)


if __name__ == "__main__":
    main()
