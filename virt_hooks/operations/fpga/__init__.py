# SPDX-License-Identifier: Apache-2.0
"""FPGA regions of servers; registered, so nothing imports them by name."""
