# SPDX-License-Identifier: Apache-2.0
"""The server process of a simulated host, and its control socket."""
