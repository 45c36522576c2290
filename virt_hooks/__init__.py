# SPDX-License-Identifier: Apache-2.0
"""Accelerators in the life of a libvirt guest; loaded by nova-compute."""
