# SPDX-License-Identifier: Apache-2.0
"""NVML, NVIDIA's management library; registered by entry points.

- ``gpu_reader``: ``read_gpus()`` returns the GPUs by PCI address.
- ``gpu_state``: conversion of the values of ``nova_accel.host.nvml_gpus`` to
  JSON and back.
- ``vgpu_reader``: running vGPUs with licence and driver of their guests.
- ``gpu_writer``: GPU instances and mixed-size mode; needs root.
- ``xid_events``: ``XidWatcher`` receives Xid errors, by one process of the
  program ``xid_listener`` per GPU.
- ``nvml_library``: calls and errors; the only import of pynvml.
"""
