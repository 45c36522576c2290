# SPDX-License-Identifier: Apache-2.0
"""Adoption of servers with vGPUs of Nova's own support, in nova-compute."""
