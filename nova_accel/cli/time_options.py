# SPDX-License-Identifier: Apache-2.0
"""Options in seconds."""

import argparse


def parse_seconds(text: str) -> float:
    """Return a number of seconds, 0 or more, for argparse.

    :raises ArgumentTypeError: the text is not such a number.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option for the time of an answer."""
    parser.add_argument(
        "--timeout",
        type=_parse_timeout,
        metavar="SECONDS",
        help="give up if a service or a nova-compute does not answer a request"
        " in this time (default: 60 for services, of which 10 to connect;"
        " [DEFAULT] rpc_response_timeout for nova-compute)",
    )


def _parse_timeout(text: str) -> float:
    number = parse_seconds(text)
    if not number:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time to wait; write seconds above 0"
        )
    return number
