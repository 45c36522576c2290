# SPDX-License-Identifier: Apache-2.0
"""NVIDIA vGPU and MIG: two drivers, one description of the card.

- ``mdev_driver`` (driver ``nvidia_mdev``): vGPUs are mediated devices;
- ``vfio_driver`` (driver ``nvidia_vfio``): vGPUs are VFs with a type;
- ``gpu_card``: mode, counters, profiles and GPU instances of a card;
- ``type_sources``: a vGPU type, merged from kernel, NVML, XML, catalog;
- ``vf_files``: sysfs attributes of typed VFs;
- ``plans``: actions of both drivers;
- ``diagnostics``: problems that an operator can solve.
"""
