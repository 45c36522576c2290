# SPDX-License-Identifier: Apache-2.0
"""Bitstreams, their file formats, and FPGA regions. No I/O."""
