# SPDX-License-Identifier: Apache-2.0
"""The host, read and changed: the only code that opens sysfs."""
