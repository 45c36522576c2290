# SPDX-License-Identifier: Apache-2.0
"""Nova's harness with our filter and weigher."""

from collections.abc import Mapping
from typing import Any

import fixtures
from nova import context
from nova.scheduler import request_filter
from nova.tests import fixtures as nova_fixtures

from tests.functional.nova.support import harness


class ScheduledTestBase(harness.AccelTestBase):
    """A scheduler with AcceleratorFilter behind all others.

    ``more_filters`` come before it; ``weighers`` are in use beside Nova's.
    """

    more_filters: tuple[str, ...] = ()
    weighers: tuple[str, ...] = ()

    def _setup_scheduler_service(self) -> Any:
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.scheduler.request_filter.ALL_REQUEST_FILTERS",
                list(request_filter.ALL_REQUEST_FILTERS),
            )
        )
        self.flags(
            available_filters=[
                "nova.scheduler.filters.all_filters",
                "filters.accelerator_filter.AcceleratorFilter",
            ],
            enabled_filters=[
                *harness.CONF.filter_scheduler.enabled_filters,
                *self.more_filters,
                "AcceleratorFilter",
            ],
            weight_classes=[
                "nova.scheduler.weights.all_weighers",
                *self.weighers,
            ],
            group="filter_scheduler",
        )
        return self.start_service("scheduler")


class CommandTestBase(ScheduledTestBase):
    """Commands reach Nova's API without Keystone."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(without_keystone())


def without_keystone() -> fixtures.Fixture:
    """Return a fixture by which commands call Nova's API as admin."""
    return fixtures.MonkeyPatch(
        "nova.api.auth.NovaKeystoneContext._create_context", _as_admin
    )


def _as_admin(env: Mapping[str, Any], **kwargs: Any) -> Any:
    """Return a request's context; Nova's Keystone stub has no tokens."""
    return context.RequestContext(
        env.get("HTTP_X_AUTH_USER", env.get("HTTP_X_AUTH_TOKEN")),
        env.get("HTTP_X_AUTH_PROJECT_ID", nova_fixtures.PROJECT_ID),
        is_admin=True,
        roles=["admin", "member", "reader"],
        **kwargs,
    )
