# SPDX-License-Identifier: Apache-2.0
"""Namespaces in which a real libvirt manages the simulated host."""
