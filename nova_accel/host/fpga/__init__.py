# SPDX-License-Identifier: Apache-2.0
"""FPGA cards of the host.

- ``dfl``: Intel's cards in sysfs; ``read()`` returns a ``DflLayout``.
- ``xrt``: AMD's Alveo cards in sysfs; ``read_shell()`` returns an
  ``XrtShell``.
- ``ioctls``: load of a bitstream by the kernel (DFL).
- ``bitstream_payload``: root's verified copy of a bitstream file.

``dfl.read_loaded`` and ``xrt.read_loaded`` return the function of a region.
"""
