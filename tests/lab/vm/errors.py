# SPDX-License-Identifier: Apache-2.0
"""Errors of the lab VM; every message says what to do next."""


class LabVmError(Exception):
    """Base of all errors of the lab VM."""


class PrepareError(LabVmError):
    """The kernel, the initramfs or fake hardware could not be built."""


class BootError(LabVmError):
    """The machine did not come up, or died."""


class NotRunningError(LabVmError):
    """An operation needs the served machine, and it is not up."""


class JobTimeoutError(LabVmError):
    """A job did not end in its time; the machine was stopped."""
