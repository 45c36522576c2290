# SPDX-License-Identifier: Apache-2.0
"""Access to the host: the only code that opens kernel files.

- ``sysfs``: reads PCI functions, mdevs, health and topology.
- ``nvml``: reads and changes GPUs through NVIDIA's library.
- ``fpga``: reads and programs FPGA cards.
- ``execute``: applies, verifies and undoes actions.
- ``state``: files below ``[nova_accel] state_dir``.
- ``bitstreams``: cache of Glance's bitstream images.
- ``bounded_calls``: the time limit of each call into the kernel.
- ``file_cache``: what was read of files; ``nvml_gpus``: values of GPUs.
- ``nova_devices``: functions that Nova's parser of ``[pci]`` finds.
- ``cards``: functions that a driver has to see together.
"""
