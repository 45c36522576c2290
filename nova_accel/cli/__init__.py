# SPDX-License-Identifier: Apache-2.0
"""The ``nova-accel`` command, and the entry points of console scripts."""
