# SPDX-License-Identifier: Apache-2.0
"""AMD Alveo cards with the XRT kernel drivers (xclmgmt and xocl)."""
