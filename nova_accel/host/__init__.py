# SPDX-License-Identifier: Apache-2.0
"""Reads and changes of the host: the only code that opens sysfs."""
