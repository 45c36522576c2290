# SPDX-License-Identifier: Apache-2.0
"""Checks of a host by area.

Each module has an ``AREA``, in which its functions are registered. The name
of a check is ``AREA.NAME``, as in ``pci.bars``; its title is the first line
of the function's docstring. A function yields an observation for each fact
that an operator should know; none means that all is well.

An absent file is a reason to fail only if a file that always exists beside it
is there: captures and trees made by hand have some files only. A file that
can't be read makes a result unknown, by an exception, and never a failure.
"""
