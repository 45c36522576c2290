# SPDX-License-Identifier: Apache-2.0
"""Request groups, slots and images of servers, from Nova's objects."""
