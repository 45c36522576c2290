# SPDX-License-Identifier: Apache-2.0
"""Access to the host: the only code that opens kernel files."""
