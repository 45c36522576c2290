# SPDX-License-Identifier: Apache-2.0
"""The conformance test of vendor drivers, of ours and of anybody's.

Needs nothing but this library::

    python -m nova_accel.conformance mycard --root tests/host

or, in a test of your own::

    from nova_accel import conformance
    from nova_accel.host.sysfs import fs

    assert not conformance.check_driver(MyCardDriver(), fs.DiskSource(root))
"""

from nova_accel.conformance.findings import Finding
from nova_accel.conformance.suite import check_driver

__all__ = ["Finding", "check_driver"]
