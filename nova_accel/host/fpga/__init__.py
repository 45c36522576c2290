# SPDX-License-Identifier: Apache-2.0
"""FPGA cards of the host.

``dfl.read_loaded`` and ``xrt.read_loaded`` return the function of a region.
"""
