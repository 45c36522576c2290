# SPDX-License-Identifier: Apache-2.0
"""The files that the lab VM boots from, and their build steps."""
