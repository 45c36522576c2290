# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's GPUs: driver, vGPU manager, NVML and sriov-manage."""
