# SPDX-License-Identifier: Apache-2.0
"""Hot attach and detach, and their recovery."""
