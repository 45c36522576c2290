# SPDX-License-Identifier: Apache-2.0
"""Commands ``nova-accel driver``: drivers of this host, by Ansible."""
