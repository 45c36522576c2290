# SPDX-License-Identifier: Apache-2.0
"""Log lines that have the reason of an error in their text.

oslo.log appends the exception that is being handled to each warning and
error (``oslo_log.formatters._get_error_summary``), so that such a line would
have its reason twice. It appends no ValueError, which it takes for a part of
the code's logic.
"""

import logging


def warning(logger: logging.Logger, text: str, *arguments: object) -> None:
    """Log a warning that has the reason of the handled exception."""
    _log(logger, logging.WARNING, text, arguments)


def error(logger: logging.Logger, text: str, *arguments: object) -> None:
    """Log an error that has the reason of the handled exception."""
    _log(logger, logging.ERROR, text, arguments)


def _log(
    logger: logging.Logger,
    level: int,
    text: str,
    arguments: tuple[object, ...],
) -> None:
    try:
        raise ValueError  # hides the handled exception from oslo.log
    except ValueError:
        logger.log(level, text, *arguments, stacklevel=3)
