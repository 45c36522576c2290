# SPDX-License-Identifier: Apache-2.0
"""The periodic task: loop, status file, metrics."""
