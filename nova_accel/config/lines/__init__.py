# SPDX-License-Identifier: Apache-2.0
"""Options of nova.conf with one JSON object a line."""
