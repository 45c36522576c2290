# SPDX-License-Identifier: Apache-2.0
"""Small programs that run inside the lab's service processes.

This directory is on ``PYTHONPATH`` of every service, so that its modules are
imported by their bare names there.  The repository is not: a service sees
the project only as the installed wheel.
"""
