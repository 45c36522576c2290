# SPDX-License-Identifier: Apache-2.0
"""Licences of guests with NVIDIA vGPUs.

- ``tokens``: ``Token``, the credential of a licence server, and its files
- ``guest_script``: the script of a guest, as vendordata for cloud-init
- ``vendordata``: ``LicenseService`` decides which server gets which token
- ``wsgi``: ``application``, the target of Nova's dynamic vendordata
- ``license_server``: whether a licence server can be reached
- ``license_checks``: the same as a check of ``nova-accel doctor --cloud``
- ``commands``, ``license_command``: ``nova-accel license vendordata``

The core does not import this package: ``setup.cfg`` registers it.
"""
