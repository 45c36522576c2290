# SPDX-License-Identifier: Apache-2.0
"""Conformance suite: checks the rules of vendor drivers on a host.

It checks this library's drivers and drivers of other packages. Run it from
the command line::

    python -m nova_accel.conformance mycard --root tests/host

or in a test of your package::

    from nova_accel import conformance
    from nova_accel.host.sysfs import fs

    assert not conformance.check_driver(MyCardDriver(), fs.DiskSource(root))

============== =========================================================
module         checks
============== =========================================================
check_devices  rules for one device: names, counters, profiles, slots
check_hosts    rules for all devices of a host: addresses, parents
check_plans    plans for the claims that the devices allow: their actions,
               and that release undoes prepare; that ``plan_arrange`` plans
               nothing needless
check_errors   descriptions with one unreadable file at a time
============== =========================================================
"""

from nova_accel.conformance.findings import Finding
from nova_accel.conformance.suite import check_driver

__all__ = ["Finding", "check_driver"]
