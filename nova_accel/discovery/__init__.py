# SPDX-License-Identifier: Apache-2.0
"""Discovery: the accelerators of a host, read in passes.

Use::

    from nova_accel.config import policy
    from nova_accel.discovery import plugin, scan
    from nova_accel.host.sysfs import host_reader

    state = scan.read(
        host_reader.HostReader(), plugin.load(), policy.DeviceRules()
    )
"""
