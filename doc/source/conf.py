# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "nova-accel"
author = "nova-accel contributors"
copyright = "nova-accel contributors, Apache License 2.0"
extensions = ["reno.sphinxext", "extra_specs_page", "generated"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1000px", "sidebar_width": "230px"}
html_static_path: list[str] = []
exclude_patterns: list[str] = ["_ext"]
