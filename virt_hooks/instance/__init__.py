# SPDX-License-Identifier: Apache-2.0
"""A ``nova.objects.Instance``: its groups, slots and images."""
