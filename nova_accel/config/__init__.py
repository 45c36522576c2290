# SPDX-License-Identifier: Apache-2.0
"""Configuration of the library.

- ``conf``: options of ``[nova_accel]``, parsed into ``Settings``
- ``conf_options``: these options
- ``lines``: options with one JSON object a line
- ``policy``: parsed ``device_spec`` lines; the rule of a device
- ``extensions``: objects that packages register as entry points
- ``library_version``: version of the installed library
- ``logs``: log lines that have the reason of an error
- ``config_source``: oslo.config driver that sets ``compute_driver``
"""
