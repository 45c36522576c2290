# SPDX-License-Identifier: Apache-2.0
"""Technologies whose actions are registered; nothing imports them by name."""
