# SPDX-License-Identifier: Apache-2.0
"""Former place of the doctor, for checks of other packages.

Deprecated: they import ``nova_accel.doctor.host_checks`` now.
"""

from nova_accel.doctor import checked_host, host_checks

__all__ = ["checked_host", "host_checks"]
