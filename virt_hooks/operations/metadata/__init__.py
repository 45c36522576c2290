# SPDX-License-Identifier: Apache-2.0
"""Metadata of guests; registered, so nothing imports it by name."""
