# SPDX-License-Identifier: Apache-2.0
"""Client configuration tokens of NVIDIA's licence servers.

A token is a credential: who has it can take licences. Its text is in no
representation, error or log line of this library.
"""

import base64
import binascii
import dataclasses
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from nova_accel import errors

_MAX_BYTES = 64 * 1024
_SUFFIX = ".tok"
_DEFAULT = "default"
# Ids of Keystone's projects are hexadecimal; those of other back ends may
# have more characters.
_NAME = re.compile(r"[\w][\w-]{0,63}")
# A JSON web token, and any other text without spaces and quotes.
_TEXT = re.compile(r"[!#-&(-~]+")
_HTTPS = 443


class TokenError(errors.AcceleratorError):
    """The file of a token can't be used.

    :param path: the file.
    :param reason: the cause, and what to do.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"licence token {path}: {reason}", path, reason)
        self.path = path
        self.reason = reason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Client configuration token, and the file that has it."""

    path: str
    text: str = dataclasses.field(repr=False)

    def list_servers(self) -> tuple[tuple[str, int], ...]:
        """Return hosts and ports of the licence servers in the token.

        Empty for a token of another form than that of a JSON web token. The
        signature is not verified: NVIDIA's client does that.
        """
        try:
            _, payload, _ = self.text.split(".")
            padded = payload + "=" * (-len(payload) % 4)
            content = json.loads(base64.urlsafe_b64decode(padded))
            return tuple(
                dict.fromkeys(
                    _parse_servers(content["service_instance_configuration"])
                )
            )
        except (
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
            binascii.Error,
        ):
            return ()


def _parse_servers(content: Any) -> Iterator[tuple[str, int]]:
    """Yield host and port of each service of each node.

    The keys are those that NVIDIA's driver reads: each node names a set of
    ports by its index.
    """
    ports = {
        int(row["idx"]): [int(each["port"]) for each in row["svc_port_map"]]
        for row in content["svc_port_set_list"]
    }
    for node in content["node_url_list"]:
        for port in ports.get(int(node["svc_port_set_idx"]), [_HTTPS]):
            yield str(node["url"]), port


def read(path: str) -> Token:
    """Return the token in a file.

    :raises TokenError: it can't be read, has no token, or every user can
        read it.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TokenError(
            path, f"can't be read ({error.strerror}); run this as its owner"
        ) from error
    if mode & stat.S_IROTH:
        raise TokenError(
            path, f"every user can read it; run chmod o-rwx {path}"
        )
    text = content.decode("ascii", "replace").strip()
    if len(content) > _MAX_BYTES or not _TEXT.fullmatch(text):
        raise TokenError(
            path,
            "has no token; write a file client_configuration_token_*.tok of"
            " the licence server",
        )
    return Token(path=path, text=text)


@dataclasses.dataclass(frozen=True, slots=True)
class TokenStore:
    """Directory of tokens by project and by series.

    It is read for each request, so that new tokens need no restart.
    """

    directory: str

    def find(self, project: str, series: Iterable[str]) -> Token | None:
        """Return the token of a project, of a series, or the default.

        :param series: of the server's vGPUs; the first with a token counts.
        :raises TokenError: the file can't be used.
        """
        for name in (project, *series, _DEFAULT):
            path = os.path.join(self.directory, f"{name}{_SUFFIX}")
            if _NAME.fullmatch(name) and os.path.lexists(path):
                return read(path)
        return None

    def list_names(self) -> tuple[str, ...]:
        """Return the names of the tokens: projects, series, ``default``.

        :raises TokenError: the directory can't be read.
        """
        try:
            files = sorted(os.listdir(self.directory))
        except OSError as error:
            raise TokenError(
                self.directory, f"can't be read ({error.strerror})"
            ) from error
        return tuple(
            name.removesuffix(_SUFFIX)
            for name in files
            if name.endswith(_SUFFIX)
        )

    def read_all(self) -> tuple[Token, ...]:
        """Return all tokens.

        :raises TokenError: a file can't be used.
        """
        return tuple(
            read(os.path.join(self.directory, f"{name}{_SUFFIX}"))
            for name in self.list_names()
        )
