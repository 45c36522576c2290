# SPDX-License-Identifier: Apache-2.0
"""Hooks into Ironic: accelerators of bare-metal nodes.

- ``collector``: report of a node, in the ramdisk (ironic-python-agent)
- ``inspection_hook``: traits of a node, in ironic-conductor
- ``hardware_manager``: steps of cleaning, deployment and service, in the
  ramdisk
- ``accelerator_steps``: the changes of these steps
- ``image_download``, ``deadlines``: images of FPGAs, fetched in bounded time
- ``node_reader``, ``node_report``: a node is read, and its report as JSON
- ``inspection_data``: the report, read in ironic-conductor within limits
- ``node_traits``: the report as traits of a node

Neither Nova nor libvirt is needed, and no other package of ``virt_hooks`` is
imported.
"""
