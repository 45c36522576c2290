# SPDX-License-Identifier: Apache-2.0
"""XML of guests, as a real libvirt takes it; ``booted`` starts them."""
