# SPDX-License-Identifier: Apache-2.0
"""FPGA cards: the kernel's DFL driver, XRT's two, and their tools."""
