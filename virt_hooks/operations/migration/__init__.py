# SPDX-License-Identifier: Apache-2.0
"""Live migration; registered, so nothing imports it by name."""
