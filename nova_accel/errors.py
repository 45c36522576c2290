# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the library, each with a hint for the operator."""

import errno as _errno
import os

# HTTP's own numbers (RFC 9110, RFC 6585).
_CONFLICT = 409
_TOO_MANY = 429
_SERVER_FAILED = 500


class AcceleratorError(Exception):
    """Base of every error this library raises on purpose.

    ``args`` are what its class was called with: oslo.privsep and pickle
    rebuild an error of another process from them.
    """

    def __init__(self, message: str, *arguments: object) -> None:
        super().__init__(*(arguments or (message,)))
        self._message = message

    def __str__(self) -> str:
        """Return the message, for the operator."""
        return self._message

    @property
    def public(self) -> str:
        """Return the message for the owner of a server.

        It names no host, no device, and nothing of other servers.
        """
        return "the host can't provide the accelerators of the server"


class ConfigurationError(AcceleratorError):
    """A value in nova.conf can't be used.

    :param option: the option as the operator wrote it, with its group.
    :param value: the offending text.
    :param mend: what to write instead.
    :param file: where it is written, if not in nova.conf.
    """

    def __init__(
        self, option: str, value: str, mend: str, file: str = "nova.conf"
    ) -> None:
        super().__init__(
            f"{file} {option} = {value}: {mend}", option, value, mend, file
        )
        self.option = option
        self.value = value
        self.mend = mend
        self.file = file


class UnreadableError(AcceleratorError):
    """A kernel attribute could not be read.

    :param path: the attribute, as a path below the host's root.
    :param number: the errno of the failed read.
    """

    def __init__(self, path: str, number: int) -> None:
        super().__init__(
            f"{path}: {_errno.errorcode.get(number, number)}"
            f" ({os.strerror(number)})",
            path,
            number,
        )
        self.path = path
        self.number = number


class MalformedError(AcceleratorError):
    """Text from outside does not have the form it must have.

    :param what: the kind of text, for example ``PCI address``.
    :param text: the text itself.
    :param expected: the form that was expected.
    """

    def __init__(self, what: str, text: str, expected: str) -> None:
        super().__init__(
            f"{text!r} is not a {what}; expected {expected}",
            what,
            text,
            expected,
        )
        self.what = what
        self.text = text
        self.expected = expected


class ClaimError(AcceleratorError):
    """A consumer's claim can't be met by this host.

    Nova reschedules the server to another host on it.

    :param consumer: uuid of the server.
    :param reason: what is missing, and where.
    :param public: the same for the owner of the server, empty for a text
        that gives no reason.
    """

    def __init__(self, consumer: str, reason: str, public: str = "") -> None:
        super().__init__(
            f"accelerators of server {consumer}: {reason}",
            consumer,
            reason,
            public,
        )
        self.consumer = consumer
        self.reason = reason
        self._public = public

    @property
    def public(self) -> str:
        """Return the message for the owner of the server."""
        public = self._public or "they are not available on its host"
        return f"accelerators of server {self.consumer}: {public}"


class ActionError(AcceleratorError):
    """The kernel refused a change, or did not do it.

    :param action: the change in words.
    :param number: errno of the refusal, 0 when the write succeeded but
        reading back shows that nothing changed.
    :param mend: what the operator can do.
    :param detail: what else is known of the reason, or nothing.
    """

    def __init__(
        self, action: str, number: int, mend: str, detail: str = ""
    ) -> None:
        what = (
            f"{_errno.errorcode.get(number, number)} ({os.strerror(number)})"
            if number
            else "the kernel accepted it, but reading back shows no change"
        )
        if detail:
            what += f": {detail}"
        super().__init__(
            f"{action}: {what}; {mend}", action, number, mend, detail
        )
        self.action = action
        self.number = number
        self.mend = mend
        self.detail = detail


class ProgrammingError(ActionError):
    """An FPGA region may hold anything now: loading a bitstream failed.

    Of an attempt that was refused before anything was touched speaks a
    plain ActionError.

    :param region: the address of the region's device.
    """

    def __init__(
        self,
        action: str,
        number: int,
        mend: str,
        detail: str = "",
        region: str = "",
    ) -> None:
        super().__init__(action, number, mend, detail)
        self.args = (action, number, mend, detail, region)
        self.region = region


class BitstreamError(AcceleratorError):
    """A bitstream may not be loaded, or can't be had.

    :param image: id of the Glance image, or the path of a file.
    :param reason: what is wrong with it and what to do.
    :param is_local: whether another host may have it all the same.
    """

    def __init__(
        self, image: str, reason: str, is_local: bool = False
    ) -> None:
        super().__init__(
            f"bitstream {image}: {reason}", image, reason, is_local
        )
        self.image = image
        self.reason = reason
        self.is_local = is_local

    @property
    def public(self) -> str:
        """Return the message for the owner of a server.

        What is wrong with the image itself, its user has to know.
        """
        if self.is_local:
            return f"bitstream {self.image}: the host can't provide it now"
        return str(self)


class ToolError(AcceleratorError):
    """A vendor's tool ended with a failure.

    :param command: the tool and its arguments.
    :param status: its exit status; negative for a signal that ended it.
    :param output: what it said, shortened.
    """

    def __init__(self, command: str, status: int, output: str) -> None:
        super().__init__(
            f"{command} ended with {status}: {output or 'no word'}",
            command,
            status,
            output,
        )
        self.command = command
        self.status = status
        self.output = output


class ArchiveError(AcceleratorError):
    """A captured host can't be written or replayed.

    :param path: the archive or directory.
    :param reason: what is wrong with it and what to do.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}", path, reason)
        self.path = path
        self.reason = reason


class BusyError(AcceleratorError):
    """Another pass over this host does not end.

    :param path: the lock that it holds.
    :param seconds: how long it was waited for.
    """

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(
            f"{path} is held by another placement-sync for {seconds:.0f} s"
            " now; see what it waits for",
            path,
            seconds,
        )
        self.path = path
        self.seconds = seconds


class DomainsError(AcceleratorError):
    """It can't be told which guests have which devices.

    :param source: who was asked, as an entry point's name or an address.
    :param reason: what is wrong and what to do.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"domains of {source}: {reason}", source, reason)
        self.source = source
        self.reason = reason


class ServiceError(AcceleratorError):
    """Placement, Nova or Keystone refused a request, or can't be had.

    :param method: the request's HTTP method.
    :param path: its path, with the query.
    :param status: the HTTP status of the answer; None where there was no
        answer that can be used, and then it can't be told whether the
        request was carried out.
    :param reason: what the service said, or what went wrong, and what to
        do about it.
    :param code: the service's own code of what went wrong, such as
        ``placement.concurrent_update``; empty where it gave none.
    :param is_lasting: whether the same request fails until somebody mends
        something, although there was no answer.
    """

    def __init__(
        self,
        method: str,
        path: str,
        status: int | None,
        reason: str,
        code: str = "",
        is_lasting: bool = False,
    ) -> None:
        answer = f" {status}" if status is not None else ""
        super().__init__(
            f"{method} {path}:{answer} {reason}",
            method,
            path,
            status,
            reason,
            code,
            is_lasting,
        )
        self.method = method
        self.path = path
        self.status = status
        self.reason = reason
        self.code = code
        self.is_lasting = is_lasting

    @property
    def is_conflict(self) -> bool:
        """Return whether somebody else came first, or needs it (409)."""
        return self.status == _CONFLICT

    @property
    def is_transient(self) -> bool:
        """Return whether the same request may succeed a little later.

        So it is without an answer, when there are too many requests, and
        when the server failed.
        """
        if self.status is None:
            return not self.is_lasting
        return self.status == _TOO_MANY or self.status >= _SERVER_FAILED
