# SPDX-License-Identifier: Apache-2.0
"""Ironic accepts the templates and runbooks of the manual."""

import re
from typing import Any

import pytest
import yaml

from tests.functional.ironic import ironic_service
from tests.unit.docs import pages

PAGE = (pages.MANUAL / "admin/ironic.rst").read_text()
# The module itself needs the configuration of an agent.
MANAGER = (pages.ROOT / "virt_hooks/ironic/hardware_manager.py").read_text()
BLOCK = re.compile(
    r"^\.\. code-block:: yaml\n\n   # (\S+)\n((?:   .*\n)+)", re.MULTILINE
)
FILES: dict[str, Any] = {
    name: yaml.safe_load(text) for name, text in BLOCK.findall(PAGE)
}


@pytest.mark.parametrize(
    ("path", "file"),
    [("deploy_templates", "mig-on.yaml"), ("runbooks", "fpga-nlb.yaml")],
)
def test_steps_are_accepted(
    ironic: ironic_service.Ironic, path: str, file: str
) -> None:
    assert f"--steps {file}" in PAGE
    body = {"name": "CUSTOM_OF_THE_PAGE", "steps": FILES[file]}
    ironic.call("POST", f"/{path}", body)
    assert all(f"def {step['step']}(" in MANAGER for step in FILES[file])
