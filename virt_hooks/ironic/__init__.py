# SPDX-License-Identifier: Apache-2.0
"""Hooks into Ironic: accelerators of bare-metal nodes.

Neither Nova nor libvirt is needed, and no other package of ``virt_hooks`` is
imported.
"""
