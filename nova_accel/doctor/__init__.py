# SPDX-License-Identifier: Apache-2.0
"""Checks of a host, before and while Nova uses its accelerators.

A check is a pure function over the files of a ``CheckedHost``. It reads
through ``host_reader.HostReader`` only, so that each check can also be run on
an archive of ``nova-accel capture``, and it changes nothing.

The core does not import this package: ``setup.cfg`` registers it as entry
points of ``nova_accel.commands`` and ``nova_accel.start_checks``.
"""
