# SPDX-License-Identifier: Apache-2.0
"""Hot attach and detach of a profile, and their recovery."""
