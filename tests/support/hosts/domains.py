# SPDX-License-Identifier: Apache-2.0
"""Host devices of simulated domains; a test sets what the domains have."""

from collections.abc import Callable

from virt_hooks.guest import connection


class SimulatedDomains:
    """HostdevReader whose answers a test replaces."""

    def __init__(
        self,
        read_use: Callable[[], connection.HostdevUse] = connection.HostdevUse,
        read_running: Callable[[], connection.HostdevUse] | None = None,
    ) -> None:
        """Answer with these; ``read_running`` is ``read_use`` if None."""
        self.read_use = read_use
        self.read_running = read_running or read_use

    def set_use(self, use: connection.HostdevUse) -> None:
        """Let running domains have these host devices."""
        self.read_use = self.read_running = lambda: use
