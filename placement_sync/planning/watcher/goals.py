# SPDX-License-Identifier: Apache-2.0
"""Goal of Watcher: room for larger profiles on the cards of a cloud."""

from collections.abc import Mapping
from typing import Any

from watcher.decision_engine.goal import base
from watcher.decision_engine.goal.efficacy import base as efficacy_base
from watcher.decision_engine.goal.efficacy import indicators
from watcher.decision_engine.solution import efficacy

_COUNT = {"type": "integer", "minimum": 0}


class RoomBefore(indicators.IndicatorSpecification):
    """Number of the profile that fits without the moves."""

    name = "profile_room_before"

    def __init__(self) -> None:
        super().__init__(
            name=self.name,
            description="Servers with the profile that fit before the moves.",
            unit=None,
        )

    @property
    def schema(self) -> Mapping[str, Any]:
        return _COUNT


class RoomAfter(indicators.IndicatorSpecification):
    """Number of the profile that fits after the moves."""

    name = "profile_room_after"

    def __init__(self) -> None:
        super().__init__(
            name=self.name,
            description="Servers with the profile that fit after the moves.",
            unit=None,
        )

    @property
    def schema(self) -> Mapping[str, Any]:
        return _COUNT


class Efficacy(efficacy_base.EfficacySpecification):
    """Room before and after the moves, and how many there are."""

    def get_indicators_specifications(
        self,
    ) -> list[indicators.IndicatorSpecification]:
        return [
            RoomBefore(),
            RoomAfter(),
            indicators.InstanceMigrationsCount(),
        ]

    def get_global_efficacy_indicator(
        self, indicators_map: Any = None
    ) -> list[efficacy.Indicator]:
        """Return the gain, 0 for a solution without moves."""
        gain = 0
        if indicators_map:
            gain = (
                indicators_map.profile_room_after
                - indicators_map.profile_room_before
            )
        return [
            efficacy.Indicator(
                name="profile_room_gain",
                description="Servers with the profile that fit in addition.",
                unit=None,
                value=gain,
            )
        ]


class AcceleratorDefragmentation(base.Goal):
    """Make room for accelerator profiles that no card can create now."""

    @classmethod
    def get_name(cls) -> str:
        return "accelerator_defragmentation"

    @classmethod
    def get_display_name(cls) -> str:
        return "Accelerator defragmentation"

    @classmethod
    def get_translatable_display_name(cls) -> str:
        return "Accelerator defragmentation"

    @classmethod
    def get_efficacy_specification(cls) -> Efficacy:
        return Efficacy()
