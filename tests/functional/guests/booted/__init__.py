# SPDX-License-Identifier: Apache-2.0
"""Real guests under QEMU see the topology of a host."""
