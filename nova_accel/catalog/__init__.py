# SPDX-License-Identifier: Apache-2.0
"""Catalog of vendors' devices: PCI ids, vGPU types, mdev types.

- ``pci_ids``: kinds of accelerators by PCI id and class
- ``vgpu_types``: NVIDIA's GPUs and vGPU types
- ``loader``: reads the data files of the package
- ``mdev_names``: names, sizes and traits of mdev types
- ``fpga``: bitstreams, their file formats, and FPGA regions
- ``vgpu_xml``: parser of NVIDIA's vgpuConfig.xml
- ``refresh``: comparison of a host's vGPU types with the catalog
"""
