# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library; ``nvml_library`` alone imports it."""
