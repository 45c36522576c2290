# SPDX-License-Identifier: Apache-2.0
"""Devices of the cloud, their states, their holders and their free room."""
