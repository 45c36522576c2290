# SPDX-License-Identifier: Apache-2.0
"""Hot attach and detach of a profile, and their recovery.

- ``attach_rpc``: ``RpcServer`` and ``Endpoint``, called by nova-accel
- ``hot_attach``: ``HotAttach``: attach and detach
- ``attach_show``: ``AttachShow``: accelerators of a server
- ``attach_recovery``: ``AttachRecovery``: undo, and recovery of
  interrupted attachments
- ``attach_devices``: ``AttachDevices``: choice of the device
- ``attach_actions``: instance actions
- ``attach_evacuated``: ``EvacuatedAttachments``: attachments of servers
  that are evacuated to this host
- ``attach_guard``: refuses moves that would lose a profile
"""
