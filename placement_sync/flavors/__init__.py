# SPDX-License-Identifier: Apache-2.0
"""What a cloud's flavors can ask for, and whether a host can serve it."""
