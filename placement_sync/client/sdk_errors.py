# SPDX-License-Identifier: Apache-2.0
"""Errors of keystoneauth and openstacksdk, as text for the operator."""

import re

from keystoneauth1 import exceptions as ksa
from openstack import exceptions as sdk

from nova_accel import errors
from placement_sync.client import http_errors

# Seconds after which a service counts as silent. A minute is the usual limit
# of load balancers in front of Placement (HAProxy's "timeout server 1m"): a
# longer wait is useless.
ANSWER_SECONDS = 60.0
_UNUSABLE = "its URL, token or timeout can't be used; correct it"
# Exception class, hint for the operator, and whether the error lasts: a
# retry without a change of configuration is useless. The first class that
# the exception is an instance of counts.
_FAILURES: tuple[tuple[type[Exception], str, bool], ...] = (
    (
        ksa.ConnectTimeout,
        "it does not answer; check whether it is overloaded",
        False,
    ),
    (
        ksa.SSLError,
        "its certificate is not trusted; name its CA in cafile of nova.conf,"
        " or in cacert of clouds.yaml",
        True,
    ),
    (
        ksa.ConnectionError,
        "it can't be reached; check whether it runs, and its address",
        False,
    ),
    (
        ksa.Unauthorized,
        "Keystone refuses the credentials; check username, password and"
        " project_name, and their domains",
        True,
    ),
    (
        ksa.HttpError,
        "Keystone issues no token; see its log",
        False,
    ),
    (
        ksa.CatalogException,
        "Keystone's catalog has no such service for this region and these"
        " interfaces; check region_name and valid_interfaces, or set"
        " endpoint_override",
        True,
    ),
    (
        sdk.ServiceDisabledException,
        "it has no endpoint; check region_name and valid_interfaces, or set"
        " endpoint_override",
        True,
    ),
    (
        ksa.DiscoveryFailure,
        "the server at auth_url is not Keystone, or has just started; check"
        " auth_url",
        False,
    ),
    (
        ksa.AuthPluginException,
        "the credentials are not complete; check auth_type and its options",
        True,
    ),
    (ValueError, _UNUSABLE, True),
    (OSError, "check certfile, keyfile and cafile of nova.conf", True),
)
# ValueError and OSError come from settings that are not checked before the
# first request.
CLIENT_ERRORS = (ksa.ClientException, sdk.SDKException, ValueError, OSError)


# The innermost cause in the nested messages of requests and urllib3.
_ADDRESS = re.compile(r"https?://[^/?#\s]+")
_CAUSE = re.compile(
    r"\[(?:Errno -?\d+|SSL: \w+)\] ([^('\")]+)|Error\(\d+, '([^']+)'\)"
)


def _describe(error: Exception) -> str:
    """Return the message without the request, which the caller names."""
    text = http_errors.shorten(str(error))
    if not isinstance(error, ksa.ConnectionError):
        return text
    address, causes = _ADDRESS.search(text), _CAUSE.findall(text)
    if address is None or not causes:
        return text
    return f"{address[0]}: {''.join(causes[-1]).strip()}"


def build_error(
    method: str, path: str, error: Exception
) -> errors.ServiceError:
    """Return the ServiceError for an error of keystoneauth or openstacksdk.

    :param error: an instance of CLIENT_ERRORS, or any other one.
    """
    if _is_unsendable(error):
        return errors.ServiceError(
            method,
            path,
            None,
            f"{_UNUSABLE}: check it for a line break or a space",
            is_lasting=True,
        )
    hint, is_lasting = next(
        (
            (hint, is_lasting)
            for kind, hint, is_lasting in _FAILURES
            if isinstance(error, kind)
        ),
        ("see its log", False),
    )
    status = error.http_status if isinstance(error, ksa.HttpError) else None
    return errors.ServiceError(
        method,
        path,
        status or None,
        http_errors.add_hint(_describe(error), hint),
        is_lasting=is_lasting,
    )


def _is_unsendable(error: Exception) -> bool:
    """Return whether requests refused to send a URL or a header.

    Its message quotes the header, which may be the token.
    """
    return isinstance(error, ksa.UnknownConnectionError) and isinstance(
        error.original, ValueError
    )
