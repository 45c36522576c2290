# SPDX-License-Identifier: Apache-2.0
"""Bitstreams and their file formats, FPGA regions. No I/O."""
