# SPDX-License-Identifier: Apache-2.0
"""Checks of a host, before and while Nova uses its accelerators.

- ``host_checks``: a check, its results, and an area of checks;
- ``checked_host``: the files of a host, in the form that checks need;
- ``areas``: the checks, one module for each area;
- ``registry``: all checks, those of other packages included, and one run;
- ``check_report``: the results as text, JSON, and variables for Ansible;
- ``start_checks``: the checks that nova-compute makes when it starts;
- ``commands``: declarations of the commands ``doctor``, ``capture`` and
  ``driver``;
- ``ansible``: installation of what the checks miss.

A check is a pure function over the files of a ``CheckedHost``. It reads
through ``host_reader.HostReader`` only, so that each check can also be run on
an archive of ``nova-accel capture``, and it changes nothing.

The core does not import this package: ``setup.cfg`` registers it as entry
points of ``nova_accel.commands`` and ``nova_accel.start_checks``.
"""
