# SPDX-License-Identifier: Apache-2.0
"""Scheduler filters for accelerators; loaded by nova-scheduler.

- ``accelerator_filter``, ``accelerator_weigher``: what nova.conf names
- ``extra_specs``: validators, loaded by Nova's API
- ``fit``: which allocation candidates fit, in which order
- ``placement``: queries to Placement, and caches of their answers
- ``explain``: the ``nova-accel explain`` command
"""
