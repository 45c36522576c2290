# SPDX-License-Identifier: Apache-2.0
"""The guest's XML, and the connection to libvirt."""
