# SPDX-License-Identifier: Apache-2.0
"""``nova.virt.accel``: module of ``compute_driver`` in nova.conf."""

from virt_hooks.nova_driver import AccelLibvirtDriver

__all__ = ["AccelLibvirtDriver"]
