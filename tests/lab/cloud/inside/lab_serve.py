# SPDX-License-Identifier: Apache-2.0
"""Serve one WSGI application on the loopback: ``MODULE:ATTR PORT THREADS``.

The services' own WSGI modules read ``sys.argv`` when they are imported, so it
is emptied first.
"""

import importlib
import logging
import sys


def main() -> None:
    """Serve until killed."""
    target, port, threads = sys.argv[1:4]
    module, attribute = target.split(":")
    sys.argv = [module]
    application = getattr(importlib.import_module(module), attribute)
    # After the application: nova checks what was imported before it.
    waitress = importlib.import_module("waitress")
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    waitress.serve(
        application,
        listen=f"127.0.0.1:{int(port)}",
        threads=int(threads),
        ident=None,
        _quiet=True,
    )


if __name__ == "__main__":
    main()
