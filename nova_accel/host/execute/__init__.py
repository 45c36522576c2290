# SPDX-License-Identifier: Apache-2.0
"""Changes of a host: applied, read back, undone; ``privileged`` as root."""
