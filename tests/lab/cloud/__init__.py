# SPDX-License-Identifier: Apache-2.0
"""The lab's control plane: real OpenStack services on the loopback."""
