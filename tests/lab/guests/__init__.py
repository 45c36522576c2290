# SPDX-License-Identifier: Apache-2.0
"""Small real guests under libvirt: they print their PCI functions."""
