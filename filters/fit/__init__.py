# SPDX-License-Identifier: Apache-2.0
"""Selection and order of allocation candidates."""
