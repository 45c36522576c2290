# SPDX-License-Identifier: Apache-2.0
"""The Debian package, and the library in images of Kolla."""
