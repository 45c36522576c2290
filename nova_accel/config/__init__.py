# SPDX-License-Identifier: Apache-2.0
"""Options, ``device_spec`` lines, and the driver that oslo.config loads."""
