# SPDX-License-Identifier: Apache-2.0
"""Plugins of Watcher: audits that defragment the cards of a cloud."""
