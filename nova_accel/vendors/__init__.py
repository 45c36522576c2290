# SPDX-License-Identifier: Apache-2.0
"""One technology, one file: each a driver of nova_accel.discovery.plugin."""
