# SPDX-License-Identifier: Apache-2.0
"""Planner of Watcher: actions in the order of their solution.

Its own planners run several migrations at the same time, and a move may need
the place that the one before it has left.
"""

from watcher.decision_engine.planner import weight


class SequencePlanner(weight.WeightPlanner):
    """One action of a kind after another."""

    parallelization = dict.fromkeys(weight.WeightPlanner.parallelization, 1)
