# SPDX-License-Identifier: Apache-2.0
"""Files of contrib/ with the real programs that read them."""
