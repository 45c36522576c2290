# SPDX-License-Identifier: Apache-2.0
"""Many cards on simulated hosts, for the scheduler and the commands."""
