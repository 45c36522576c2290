# SPDX-License-Identifier: Apache-2.0
"""Reading sysfs, procfs and configuration space, and listening to udev."""
