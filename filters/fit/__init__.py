# SPDX-License-Identifier: Apache-2.0
"""Which allocation candidates fit, in which order."""
