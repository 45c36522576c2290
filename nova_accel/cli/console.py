# SPDX-License-Identifier: Apache-2.0
"""Entry points of the console scripts.

They import only what is needed to handle Ctrl-C while a command is loaded.
"""

import importlib
import warnings

# 128 and the number of SIGINT, as shells return it.
INTERRUPTED = 130


def nova_accel() -> int:
    """Run ``nova-accel``; return its exit status."""
    return run("nova_accel.cli.commands")


def placement_sync() -> int:
    """Run ``placement-sync``; return its exit status."""
    return run("placement_sync.cli.main")


def run(module: str) -> int:
    """Run ``main`` of a module; return its exit status, 130 for Ctrl-C."""
    # Libraries of Nova import eventlet; no command uses it.
    warnings.filterwarnings("ignore", r"\s*Eventlet is deprecated")
    try:
        status: int = importlib.import_module(module).main()
    except KeyboardInterrupt:
        return INTERRUPTED
    return status
