# SPDX-License-Identifier: Apache-2.0
"""Plugin of Tempest that runs tests which other plugins skip for a bug.

Tempest imports its plugins before their tests.
"""

import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from tempest.lib import decorators
from tempest.test_discover import plugins

# Nova: an evacuated server keeps the allocation of its vGPU on both hosts.
_BUGS = frozenset({"1874664"})
_skip_because = decorators.skip_because


def _skip_because_of_others(*arguments: Any, **options: Any) -> Any:
    if options.get("bug") not in _BUGS:
        return _skip_because(*arguments, **options)
    unchanged: Callable[[Any], Any] = lambda test: test  # noqa: E731
    return unchanged


decorators.skip_because = _skip_because_of_others


class Unskip(plugins.TempestPlugin):  # type: ignore[misc]
    """It has neither tests nor options of its own."""

    def load_tests(self) -> tuple[str, str]:
        """Return a directory without tests, twice."""
        place = str(pathlib.Path(__file__).parent)
        return place, place

    def register_opts(self, conf: Any) -> None:
        """Register nothing."""

    def get_opt_lists(self) -> Iterable[Any]:
        """Return nothing."""
        return ()
