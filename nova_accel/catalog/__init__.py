# SPDX-License-Identifier: Apache-2.0
"""Facts about vendors' devices, as data that comes with the package."""
