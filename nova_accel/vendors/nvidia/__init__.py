# SPDX-License-Identifier: Apache-2.0
"""NVIDIA vGPU and MIG: two drivers, one description of the card."""
