# SPDX-License-Identifier: Apache-2.0
"""Commands that adopt servers with vGPUs of Nova's own support."""
