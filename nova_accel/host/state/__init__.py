# SPDX-License-Identifier: Apache-2.0
"""Files below ``[nova_accel] state_dir``.

``notes`` and ``directories`` (access to files that is safe for root) serve
the others.
"""
