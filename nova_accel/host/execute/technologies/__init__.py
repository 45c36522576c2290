# SPDX-License-Identifier: Apache-2.0
"""Technologies whose actions are registered; nothing imports them by name.

- ``vgpu_actions``: mdevs, and NVIDIA's vGPUs on VFs.
- ``nvml_actions``: GPU instances and modes of GPUs; ``nvml_privileged``.
- ``fpga_actions``: regions and ports of FPGAs; ``fpga_privileged``.
- ``qat_telemetry``: read by root, for samples of usage.
"""
