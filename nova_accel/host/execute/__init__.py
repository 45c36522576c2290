# SPDX-License-Identifier: Apache-2.0
"""Changes of a host: actions are applied, read back and undone."""
