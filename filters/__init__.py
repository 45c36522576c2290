# SPDX-License-Identifier: Apache-2.0
"""Scheduler filter and weigher for accelerators, loaded by nova-scheduler.

Public modules, named in nova.conf and in setup.cfg:

- ``accelerator_filter.AcceleratorFilter``: rejects and orders candidates
- ``accelerator_weigher.AcceleratorWeigher``: weighs hosts
- ``extra_specs.register``: validators of extra specs, loaded by nova-api

- ``candidate_capture``: the seam into nova-scheduler

Packages:

- ``fit``: selection and order of allocation candidates
- ``placement``: Placement's answers, queries, and caches

Shared values: ``request.AcceleratorRequest`` (groups of a flavor that
request accelerators) and ``nova_accel.model.providers.Provider``
(a resource provider). Nothing here knows a host; all data come from
Placement, from Nova's HostState and from Glance.
"""
