# SPDX-License-Identifier: Apache-2.0
"""Guests: their XML, their host devices, and the connection to libvirt."""
