# SPDX-License-Identifier: Apache-2.0
"""Vendor drivers: one technology, one file or folder each.

Each implements ``nova_accel.discovery.plugin.Driver`` and is an entry point
of the group ``nova_accel.drivers``. To write a new one, copy
``nova_accel/conformance/template.py``.

============================ =============== ==============================
module                       driver          hardware
============================ =============== ==============================
``nvidia.mdev_driver``       nvidia_mdev     NVIDIA vGPU and MIG, by mdevs
``nvidia.vfio_driver``       nvidia_vfio     NVIDIA vGPU and MIG, by typed
                                             VFs (vendor-specific VFIO)
``intel_sriov``              intel_sriov     VFs of Intel GPUs
``amd_mxgpu``                amd_mxgpu       VFs of AMD GPUs (gim)
``qat``                      qat             VFs of Intel QAT devices
``intel_dfl.dfl_driver``     dfl             regions of Intel FPGA cards
``amd_alveo.alveo_driver``   alveo           regions of AMD Alveo cards
``mdev``                     mdev            other mdev parents: GVT-g,
                                             vfio-ap, vfio-ccw, mtty
``pci_vf``                   pci_vf          VFs of NVMe disks, and of PFs
                                             named in device_spec
``pci_passthrough``          pci_passthrough whole PCI functions
============================ =============== ==============================

``common`` holds the base classes and checks that several drivers share.
"""
