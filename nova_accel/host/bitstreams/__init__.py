# SPDX-License-Identifier: Apache-2.0
"""Cache of Glance's bitstream images on the host's disk."""
