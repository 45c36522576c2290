# SPDX-License-Identifier: Apache-2.0
"""Plugins of Watcher: audits that defragment the cards of a cloud.

- ``goals``: the goal, and the indicators of its efficacy
- ``strategies``: a plan of moves as actions of Watcher
- ``planners``: one action after another
"""
