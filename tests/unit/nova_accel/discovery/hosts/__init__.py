# SPDX-License-Identifier: Apache-2.0
"""Readings of whole hosts: recorded, odd, partial and with faults."""
