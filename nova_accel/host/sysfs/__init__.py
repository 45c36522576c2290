# SPDX-License-Identifier: Apache-2.0
"""Reads of sysfs, procfs and configuration space, and the udev monitor.

- ``host_reader``: ``HostReader`` reads PCI functions, mdev parents and
  mdevs, each file once (``attributes``).
- ``repeated_reader``: ``RepeatedReader`` reads some functions again.
- ``fs``: ``Files`` and ``DiskSource``; a captured host has another source,
  ``nova_accel.discovery.capture.RecordedFiles``.
- ``error_counters``: health of devices; ``find_faults()``.
- ``links``: root ports and NVLinks.
- ``modules``, ``nvme``, ``hwdata``, ``vgpu_config``: kernel modules, disks
  in use, names in pci.ids, NVIDIA's vgpuConfig.xml.
- ``udev``: ``UdevMonitor``, and the ``UeventLog`` of what it received.
"""
