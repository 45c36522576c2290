# SPDX-License-Identifier: Apache-2.0
"""Configuration of the library.

- ``conf``: options of ``[nova_accel]``, parsed into ``Settings``
- ``policy``: parsed ``device_spec`` lines; the rule of a device
- ``device_spec``: validators of the fields of one line
- ``extensions``: objects that packages register as entry points
- ``library_version``: version of the installed library
- ``config_source``: oslo.config driver that sets ``compute_driver``
"""
