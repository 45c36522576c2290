# SPDX-License-Identifier: Apache-2.0
"""Report of a fleet: devices and holders, flavors, projects, problems."""
