# SPDX-License-Identifier: Apache-2.0
"""Errors of keystoneauth and openstacksdk, as text for the operator."""

import re

from keystoneauth1 import exceptions as ksa
from openstack import exceptions as sdk

from nova_accel import errors
from placement_sync.client import http_errors

_UNUSABLE = "its URL, token or timeout can't be used; mend it"
# The first class that fits: what the operator can do, and whether waiting
# is no use.
_FAILURES: tuple[tuple[type[Exception], str, bool], ...] = (
    (ksa.ConnectTimeout, "it does not answer; see whether it is busy", False),
    (
        ksa.SSLError,
        "its certificate is not trusted; name its CA in cafile of nova.conf,"
        " or in cacert of clouds.yaml",
        True,
    ),
    (
        ksa.ConnectionError,
        "it can't be reached; see whether it runs, and is at this address",
        False,
    ),
    (
        ksa.Unauthorized,
        "Keystone refuses the credentials; see username, password and"
        " project_name, and their domains",
        True,
    ),
    (
        ksa.HttpError,
        "Keystone does not give a token; see its log",
        False,
    ),
    (
        ksa.CatalogException,
        "Keystone's catalogue has no such service for this region and these"
        " interfaces; see region_name and valid_interfaces, or write its"
        " endpoint_override",
        True,
    ),
    (
        sdk.ServiceDisabledException,
        "there is no endpoint of it; see region_name and valid_interfaces,"
        " or write its endpoint_override",
        True,
    ),
    (
        ksa.DiscoveryFailure,
        "what answers is not Keystone, or it has just started; see auth_url",
        False,
    ),
    (
        ksa.AuthPluginException,
        "the credentials are not complete; see auth_type and its options",
        True,
    ),
    (ValueError, _UNUSABLE, True),
    (OSError, "see certfile, keyfile and cafile of nova.conf", True),
)
# The last two are of settings that nobody looks at before a request.
REFUSED = (ksa.ClientException, sdk.SDKException, ValueError, OSError)


# The cause at the end of what requests and urllib3 wrap into one another.
_ADDRESS = re.compile(r"https?://[^/?#\s]+")
_CAUSE = re.compile(
    r"\[(?:Errno -?\d+|SSL: \w+)\] ([^('\")]+)|Error\(\d+, '([^']+)'\)"
)


def _describe(error: Exception) -> str:
    """Return what happened, without the request that the caller names."""
    text = http_errors.tidy(str(error))
    if not isinstance(error, ksa.ConnectionError):
        return text
    address, causes = _ADDRESS.search(text), _CAUSE.findall(text)
    if address is None or not causes:
        return text
    return f"{address[0]}: {''.join(causes[-1]).strip()}"


def build_error(
    method: str, path: str, error: Exception
) -> errors.ServiceError:
    """Return our error for what keystoneauth or openstacksdk raised."""
    if _is_unsendable(error):
        return errors.ServiceError(
            method,
            path,
            None,
            f"{_UNUSABLE}: see whether a line break or a space is in it",
            is_lasting=True,
        )
    mend, is_lasting = next(
        (
            (mend, is_lasting)
            for kind, mend, is_lasting in _FAILURES
            if isinstance(error, kind)
        ),
        ("see its log", False),
    )
    status = error.http_status if isinstance(error, ksa.HttpError) else None
    return errors.ServiceError(
        method,
        path,
        status or None,
        f"{_describe(error)}; {mend}",
        is_lasting=is_lasting,
    )


def _is_unsendable(error: Exception) -> bool:
    """Return whether requests refused to send a URL or a header.

    Its message quotes the header, which may be the token.
    """
    return isinstance(error, ksa.UnknownConnectionError) and isinstance(
        error.original, ValueError
    )
