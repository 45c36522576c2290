# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in the lab VM; every message says what to do next."""


class LabVmError(Exception):
    """Base of all errors of the lab VM."""


class PrepareError(LabVmError):
    """The kernel, the initramfs or a stand-in could not be made."""


class BootError(LabVmError):
    """The machine did not come up, or died."""


class NotRunningError(LabVmError):
    """An operation needs the served machine, and it is not up."""


class JobTimeoutError(LabVmError):
    """A job did not end in its time; the machine was stopped."""
