# SPDX-License-Identifier: Apache-2.0
"""Licences of guests with NVIDIA vGPUs."""
