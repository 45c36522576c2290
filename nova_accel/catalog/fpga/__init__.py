# SPDX-License-Identifier: Apache-2.0
"""Bitstreams, their file formats, and FPGA regions. No I/O.

- ``bitstreams``: checks of image properties and file contents
- ``regions``: regions that can serve a request group
- ``gbs``: header of Intel's green bitstream files
- ``xclbin``: header of AMD's xclbin files
"""
