# SPDX-License-Identifier: Apache-2.0
"""Commands about flavors: ``openstack accel explain`` and others."""
