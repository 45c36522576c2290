# SPDX-License-Identifier: Apache-2.0
"""Scheduler filters for accelerators; loaded by nova-scheduler."""
