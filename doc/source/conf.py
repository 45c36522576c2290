# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# Modules beside the installed packages: extensions, and tools/.
sys.path[:0] = [str(_HERE / "_ext"), str(_HERE.parents[1])]

# After sys.path.
from tools import man_pages as _pages  # noqa: E402

project = "nova-accel"
# The theme's own reading of git has no number without tags.
openstackdocs_auto_version = False
version = release = _pages.read_number()
author = "nova-accel contributors"
copyright = "nova-accel contributors, Apache License 2.0"
extensions = [
    "cliff.sphinxext",
    "extra_specs_page",
    "gpu_fractions",
    "generated",
    "openstackdocstheme",
    "reno.sphinxext",
    "repeated_options",
]
# Options that each command has; reference/openstack names them once.
autoprogram_cliff_ignored = [
    "--help", "--config-file", "--timeout", "--format", "--column",
    "--sort-column", "--sort-ascending", "--sort-descending", "--quote",
    "--noindent", "--max-width", "--fit-width", "--print-empty", "--prefix",
]  # fmt: skip
# A text with "--" and quotes is copied into shells.
smartquotes = False
# Man page: sphinx-build -b man.
man_pages = [
    (
        "reference/openstack",
        "openstack-accel",
        "accelerators of an OpenStack cloud",
        [author],
        1,
    )
]
html_theme = "openstackdocs"
html_search_scorer = str(_HERE / "_ext/search_scorer.js")
html_static_path = ["_static"]
html_css_files = ["tables.css"]
exclude_patterns: list[str] = ["_ext"]
