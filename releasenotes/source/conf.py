# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the release notes alone."""

project = "nova-accel release notes"
author = "nova-accel contributors"
extensions = ["openstackdocstheme", "reno.sphinxext"]
html_theme = "openstackdocs"
