# SPDX-License-Identifier: Apache-2.0
"""Hot attach and detach of a profile, and their recovery.

- ``attach_rpc``: ``RpcServer`` and ``Endpoint``, called by nova-accel
- ``hot_attach``: ``HotAttach``: attach and detach
- ``attach_show``: ``AttachShow``: accelerators of a server
- ``attach_recovery``: ``AttachRecovery``: undo, and recovery of
  interrupted attachments
- ``attach_allocations``: allocations and slots of one server
- ``attach_devices``: ``AttachDevices``: choice of the device
- ``attach_actions``: instance actions and notifications
- ``attach_guest``: devices of a domain and of its guest
- ``attach_evacuated``: ``EvacuatedAttachments``: attachments of servers
  that are evacuated to this host
- ``unified_limits``: Nova's limits of the server's project
- ``attach_operation``: ``AttachOperation``, which nova-compute loads by the
  entry point group ``nova_accel.operations``; the core does not import this
  package by name
"""
