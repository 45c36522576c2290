# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library; ``nvml_calls`` alone imports it."""
