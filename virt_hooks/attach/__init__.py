# SPDX-License-Identifier: Apache-2.0
"""Hot attach and detach of a profile, and their recovery.

- ``attach_rpc``: ``RpcServer`` and ``Endpoint``, called by nova-accel
- ``hot_attach``: ``HotAttachDriver``: attach and detach
- ``attach_show``: ``AttachShowDriver``: accelerators of a server
- ``attach_recovery``: ``AttachRecoveryDriver``: undo, and recovery of
  interrupted attachments
- ``attach_guard``: ``AttachGuardDriver``: refuses moves

The drivers are bases of ``AccelLibvirtDriver``.
"""
