# SPDX-License-Identifier: Apache-2.0
"""Files below ``state_dir``: faults, drains, claims, locks."""
