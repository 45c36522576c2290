# SPDX-License-Identifier: Apache-2.0
"""Gateway: the commands that reach nova-compute, for users without its bus."""
