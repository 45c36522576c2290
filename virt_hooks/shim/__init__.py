# SPDX-License-Identifier: Apache-2.0
"""``nova.virt.accel``: what ``compute_driver`` in nova.conf names."""

from virt_hooks.nova_driver import AccelLibvirtDriver

__all__ = ["AccelLibvirtDriver"]
