# SPDX-License-Identifier: Apache-2.0
"""From devices to a provider tree, with health and drain marks. No I/O."""
