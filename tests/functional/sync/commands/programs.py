# SPDX-License-Identifier: Apache-2.0
"""Commands in this process, by their present names."""

import functools
import sys
from collections.abc import Sequence

from nova_accel.cli import application, command_manager
from placement_sync.cli import main as placement_sync


@functools.cache
def _list_points() -> command_manager.Points:
    cloud = command_manager.load_points(command_manager.CLOUD_GROUP)
    return {
        **command_manager.load_points(command_manager.HOST_GROUP),
        **{name.removeprefix("accel "): cloud[name] for name in cloud},
    }


def main(words: Sequence[str]) -> int:
    """Run a command; return its exit status.

    ``run`` is that of ``placement-sync``. Commands of the cloud have the
    options for credentials that they have as commands of ``nova-accel``.
    """
    if words and words[0] == "run":
        return placement_sync.main(words)
    manager = command_manager.CommandManager(_list_points(), dict)
    return application.Application("nova-accel", "", manager).main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
