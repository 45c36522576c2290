# SPDX-License-Identifier: Apache-2.0
"""Discovery: the accelerators of a host, read in passes.

- ``plugin``: protocol of vendor drivers; ``plugin.load()`` returns the
  installed drivers.
- ``scan``: one pass; ``scan.read(host, drivers, rules)`` returns a
  ``model.HostState``, or of one card.
- ``host_readings``: ``HostReadings`` reads the host, and cards again, and
  has the newest state, with faults, drains and error counters
  (``note_stores``).
- ``change_detection``: ``ChangeDetector`` finds what may have changed.
- ``snapshot``: ``Snapshot`` serves the last pass without reading.
- ``capture``: a host packed into an archive (``save``) and read back
  (``load``).
- ``unoffered_devices``: accelerators that are not offered.
- ``doctor``: former place of ``nova_accel.doctor.host_checks``.

Use::

    from nova_accel.config import policy
    from nova_accel.discovery import plugin, scan
    from nova_accel.host.sysfs import host_reader

    state = scan.read(
        host_reader.HostReader(), plugin.load(), policy.DeviceRules()
    )
"""
