# SPDX-License-Identifier: Apache-2.0
"""Commands in this process, by their present names."""

import functools
import sys
from collections.abc import Sequence

from nova_accel.cli import application
from placement_sync.cli import main as placement_sync


@functools.cache
def _list_points() -> application.Points:
    cloud = application.load_points(application.CLOUD_GROUP)
    return {
        **application.load_points(application.HOST_GROUP),
        **{name.removeprefix("accel "): cloud[name] for name in cloud},
    }


def main(words: Sequence[str]) -> int:
    """Run a command; return its exit status.

    ``run`` is that of ``placement-sync``. Commands of the cloud have the
    options for credentials that they have as commands of ``nova-accel``.
    """
    if words and words[0] == "run":
        return placement_sync.main(words)
    manager = application.CommandManager(_list_points(), dict)
    return application.Application("nova-accel", "", manager).main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
