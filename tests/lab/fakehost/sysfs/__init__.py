# SPDX-License-Identifier: Apache-2.0
"""The simulated file system: nodes, FUSE, faults, device nodes, uevents."""
