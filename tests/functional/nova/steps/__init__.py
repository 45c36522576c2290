# SPDX-License-Identifier: Apache-2.0
"""One law for each step of each operation: see ``trials``."""
