# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPUs, by mdev and by vendor-specific VFIO."""
