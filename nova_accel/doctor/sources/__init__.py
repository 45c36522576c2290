# SPDX-License-Identifier: Apache-2.0
"""Sources of a checked host beside its devices."""
