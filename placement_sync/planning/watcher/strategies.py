# SPDX-License-Identifier: Apache-2.0
"""Strategy of Watcher: the fewest moves that make room for a profile."""

import argparse
import functools
import logging
from collections.abc import Mapping
from typing import Any

from watcher.common import nova_helper
from watcher.decision_engine.strategy.strategies import base

from placement_sync.fleet.moves import defragmentation
from placement_sync.planning.defragmentation import (
    cloud_reader,
    move_plan,
    move_planner,
    plan_command,
)
from placement_sync.planning.watcher import goals

LOG = logging.getLogger(__name__)
_PLANNER = "accelerator_sequence"


class FewestMoves(base.BaseStrategy):
    """Plan of ``openstack accel plan defragment`` as actions of Watcher.

    Cards of hosts outside of the audit's scope neither give nor get a server.
    """

    def __init__(self, config: Any, osc: Any = None) -> None:
        super().__init__(config, osc)
        self.planner = _PLANNER
        self._plan: move_plan.MovePlan | None = None

    @classmethod
    def get_name(cls) -> str:
        return "accelerator_defragmentation"

    @classmethod
    def get_display_name(cls) -> str:
        return "Fewest moves that make room for a profile"

    @classmethod
    def get_translatable_display_name(cls) -> str:
        return "Fewest moves that make room for a profile"

    @classmethod
    def get_goal_name(cls) -> str:
        return goals.AcceleratorDefragmentation.get_name()

    @classmethod
    def get_config_opts(cls) -> list[Any]:
        """Return no options: no metric is read."""
        return []

    @classmethod
    def get_schema(cls) -> Mapping[str, Any]:
        """Return the parameters of an audit."""
        number = {"type": "integer", "minimum": 1}
        return {
            "properties": {
                "profile": {
                    "description": "Profile to make room for, for example"
                    " A40-24Q; by default any larger one than fits now",
                    "type": "string",
                    "minLength": 1,
                },
                "count": {
                    "description": "How many times the profile is to fit",
                    "default": 1,
                    **number,
                },
                "moves": {
                    "description": "Moves, at most",
                    "default": 8,
                    **number,
                },
                "time_limit": {
                    "description": "Seconds of the search, at most",
                    "default": 60,
                    **number,
                },
                "cold": {
                    "description": "Also move servers that are shut off",
                    "type": "boolean",
                    "default": False,
                },
            },
        }

    def pre_execute(self) -> None:
        self._pre_execute()

    def do_execute(self, audit: Any = None) -> None:
        """Add an action for each move; none if there is no plan.

        :raises AcceleratorError: the profile is unknown, or Placement or
            Nova fails.
        """
        del audit
        arguments = self._build_arguments()
        reader = cloud_reader.PlanningReader(arguments)
        nodes = self.compute_model.get_all_compute_nodes()
        planner = move_planner.MovePlanner(
            reader,
            arguments.time_limit,
            arguments.cold,
            frozenset(node.uuid for node in nodes.values()),
        )
        try:
            result = planner.find(
                functools.partial(plan_command.find_moves, arguments)
            )
        except defragmentation.NoPlanError as error:
            LOG.info("No moves: %s", error)
            return
        self._plan = planner.build(result, reader.link)
        for move in self._plan.moves:
            self.solution.add_action(
                action_type=self.MIGRATION,
                resource_id=move.server,
                input_parameters={
                    "migration_type": move.kind,
                    "source_node": move.source.service,
                    "destination_node": move.target.service,
                    "resource_name": move.name,
                },
            )

    def _build_arguments(self) -> argparse.Namespace:
        """Return the arguments of the command, with Watcher's credentials."""
        parser = argparse.ArgumentParser()
        plan_command.ACTION.add_arguments(parser)
        return argparse.Namespace(
            **{
                **vars(parser.parse_args([])),
                **self.input_parameters,
                "connection": nova_helper.NovaHelper().connection,
            }
        )

    def post_execute(self) -> None:
        plan = self._plan
        self.solution.set_efficacy_indicators(
            profile_room_before=plan.gain.before if plan else 0,
            profile_room_after=plan.gain.after if plan else 0,
            instance_migrations_count=len(plan.moves) if plan else 0,
        )
