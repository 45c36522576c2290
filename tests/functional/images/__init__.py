# SPDX-License-Identifier: Apache-2.0
"""Bitstreams through Nova's own image API and its client of Glance."""
