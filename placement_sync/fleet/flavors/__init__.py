# SPDX-License-Identifier: Apache-2.0
"""Profiles of a whole cloud, and flavors that request them.

All but ``cloud`` are pure.
"""
