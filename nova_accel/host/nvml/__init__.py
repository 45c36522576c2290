# SPDX-License-Identifier: Apache-2.0
"""NVML, NVIDIA's management library; registered by entry points."""
