# SPDX-License-Identifier: Apache-2.0
"""Reports of the library, against the code of Nova."""
