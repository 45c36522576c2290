# SPDX-License-Identifier: Apache-2.0
"""Files of the Ansible collection."""

import functools
import importlib.util
import pathlib
from types import ModuleType
from typing import Any

import yaml

TOP = pathlib.Path(__file__).resolve().parents[3] / "contrib/ansible"
# Steps of the other roles.
HELPERS = {"doctor", "manifest"}


@functools.cache
def load_module(name: str) -> ModuleType:
    """Return a module that Ansible runs on hosts."""
    path = TOP / f"plugins/module_utils/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(*parts: str) -> Any:
    """Return the content of a file of YAML."""
    return yaml.safe_load(TOP.joinpath(*parts).read_text())


def list_roles() -> list[str]:
    """Return the roles that are for operators."""
    names = {path.name for path in (TOP / "roles").iterdir()}
    return sorted(names - HELPERS)
