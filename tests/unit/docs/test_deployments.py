# SPDX-License-Identifier: Apache-2.0
"""The lines for deployment tools have the options of the install page.

The tools do not run: overrides are written as OpenStack-Ansible's plugin
config_template documents it, a mapping without values as one line for each
of its keys.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from oslo_config import cfg

from tests.unit.docs import pages

_TEXT = (pages.MANUAL / "install/index.rst").read_text()
_BLOCK = r"^\.\. code-block:: {}\n\n((?:   .*\n|\n)+)"
# Of the role os_nova (defaults/main.yml), and templates/nova.conf.j2.
_DEFAULT_FILTERS = "ComputeFilter,NUMATopologyFilter"


def list_blocks(language: str) -> list[str]:
    blocks = re.findall(_BLOCK.format(language), _TEXT, re.MULTILINE)
    return [re.sub("(?m)^   ", "", block) for block in blocks]


def render(overrides: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for section, options in overrides.items():
        lines.append(f"[{section}]")
        for name, value in options.items():
            values = value if isinstance(value, dict) else [value]
            lines += [f"{name} = {each}" for each in values]
    return "\n".join(lines) + "\n"


def parse(path: pathlib.Path, text: str) -> dict[str, Any]:
    """Return the options of nova-compute and nova-scheduler."""
    path.write_text(text)
    options = cfg.ConfigOpts()
    options.register_opt(cfg.StrOpt("compute_driver"))
    options.register_opts(
        [
            cfg.MultiStrOpt("available_filters"),
            cfg.ListOpt("enabled_filters"),
            cfg.ListOpt("weight_classes"),
        ],
        "filter_scheduler",
    )
    options(["--config-file", str(path)], default_config_files=[])
    return {
        "compute_driver": options.compute_driver,
        **dict(options.filter_scheduler),
    }


@pytest.fixture
def expected(tmp_path: pathlib.Path) -> dict[str, Any]:
    """Return the options that the page has for each installation."""
    (compute,) = [b for b in list_blocks("ini") if "compute_driver" in b]
    (scheduler,) = [b for b in list_blocks("ini") if "weight_classes" in b]
    return parse(tmp_path / "page.conf", compute + scheduler)


def test_lines_of_openstack_ansible(
    tmp_path: pathlib.Path, expected: dict[str, Any]
) -> None:
    kolla, ansible = map(yaml.safe_load, list_blocks("yaml"))
    filters = [
        *_DEFAULT_FILTERS.split(","),
        *ansible["nova_scheduler_extra_filters"],
    ]
    template = f"[filter_scheduler]\nenabled_filters = {','.join(filters)}\n"
    text = template + render(ansible["nova_nova_conf_overrides"])
    written = parse(tmp_path / "nova.conf", text)
    assert written.pop("enabled_filters")[-1] == "AcceleratorFilter"
    assert expected.pop("enabled_filters")[-1] == "AcceleratorFilter"
    assert written == expected
    (requirement,) = ansible["nova_user_pip_packages"]
    assert re.fullmatch(
        r"nova-accel\[compute\] @ file:///\S+#sha256=\S+", requirement
    )
    assert set(kolla.values()) == {"2025.1-accel"}
    for service in ("api", "compute", "scheduler"):
        assert f"nova_{service}_tag" in kolla


def test_the_line_of_devstack_names_the_plugin() -> None:
    (block,) = [b for b in list_blocks("ini") if "enable_plugin" in b]
    assert re.search(r"(?m)^enable_plugin nova-accel https://\S+$", block)
    settings = (pages.ROOT / "devstack/settings").read_text()
    assert "NOVA_ACCEL_DEVICE_SPEC=" in settings
