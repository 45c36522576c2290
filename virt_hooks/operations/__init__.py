# SPDX-License-Identifier: Apache-2.0
"""One operation of Nova, one file."""
