# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the library, each with a hint for the operator.

::

    AcceleratorError
    ├── ConfigurationError    a value in nova.conf is not valid
    │   └── BrokenDriverError a vendor driver can't be loaded
    ├── UnreadableError       a kernel attribute could not be read
    ├── MalformedError        text from outside has another form
    ├── ClaimError            this host can't satisfy a claim
    ├── ActionError           the kernel did not make a change
    │   └── ProgrammingError  loading a bitstream failed half-way
    ├── BitstreamError        a bitstream is refused or not available
    ├── ToolError             a vendor's tool failed
    ├── ArchiveError          a captured host can't be written or read
    ├── BusyError             another pass holds the lock of this host
    ├── DomainsError          the devices of guests can't be read
    └── ServiceError          an API request failed

``str()`` is the message for the operator, ``public`` the one for the owner
of the server.
"""

import errno as _errno
import os

# HTTP status codes (RFC 9110, RFC 6585).
_CONFLICT = 409
_FORBIDDEN = 403
_TOO_MANY = 429
_SERVER_FAILED = 500


class AcceleratorError(Exception):
    """Base class of the library's exceptions.

    ``args`` are the arguments of the constructor: oslo.privsep and pickle
    rebuild an exception of another process from them.
    """

    def __init__(self, message: str, *arguments: object) -> None:
        super().__init__(*(arguments or (message,)))
        self._message = message

    def __str__(self) -> str:
        return self._message

    @property
    def public(self) -> str:
        """Return the message for the owner of the server.

        It names no host, no device and no other server.
        """
        return "the host can't provide the accelerators of the server"


class ConfigurationError(AcceleratorError):
    """A value in nova.conf is not valid.

    :param option: the option with its group, ``[nova_accel] drivers``.
    :param value: the value as it is written.
    :param hint: what is wrong with the value and what to write instead.
    :param file: the file or environment variable that sets the option.
    """

    def __init__(
        self, option: str, value: str, hint: str, file: str = "nova.conf"
    ) -> None:
        written = f" = {value}" if value else " has no value"
        if not value and option.endswith("]"):  # a section
            written = ""
        super().__init__(
            f"{file} {option}{written}: {hint}", option, value, hint, file
        )
        self.option = option
        self.value = value
        self.hint = hint
        self.file = file


class BrokenDriverError(ConfigurationError):
    """The code of a vendor driver that is installed can't be loaded.

    For a command this is as an option that names no driver. nova-compute
    goes on with the servers that need none.
    """


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
    """Text from outside does not have the expected form.

    :param kind: the kind of text, for example ``PCI address``.
    :param text: the text as it was read.
    :param expected: the expected form.
    """

    def __init__(self, kind: str, text: str, expected: str) -> None:
        problem = (
            f"{text!r} is not a {kind}" if text else f"the {kind} is empty"
        )
        super().__init__(
            f"{problem}; expected {expected}",
            kind,
            text,
            expected,
        )
        self.kind = kind
        self.text = text
        self.expected = expected


class ClaimError(AcceleratorError):
    """This host can't satisfy the claim of a consumer.

    Nova reschedules the server to another host.

    :param consumer: UUID of the server.
    :param reason: the missing resource and its provider.
    :param public: the reason for the owner of the server; empty for a
        general one.
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
        public = self._public or "they are not available on its host"
        return f"accelerators of server {self.consumer}: {public}"


class ActionError(AcceleratorError):
    """The kernel refused a change, or ignored it.

    :param action: the change in words.
    :param number: errno of the refusal; 0 when the write succeeded but
        reading back shows that nothing changed.
    :param hint: what the operator can do.
    :param detail: more about the reason, or empty.
    """

    def __init__(
        self, action: str, number: int, hint: str, detail: str = ""
    ) -> None:
        failure = (
            f"{_errno.errorcode.get(number, number)} ({os.strerror(number)})"
            if number
            else "the kernel accepted it, but reading back shows no change"
        )
        if detail:
            failure += f": {detail}"
        super().__init__(
            f"{action}: {failure}; {hint}", action, number, hint, detail
        )
        self.action = action
        self.number = number
        self.hint = hint
        self.detail = detail


class ProgrammingError(ActionError):
    """Loading a bitstream failed; the content of the region is undefined.

    Where the load was refused before the region changed, ActionError is
    raised instead.

    :param region: the address of the region's device.
    """

    def __init__(
        self,
        action: str,
        number: int,
        hint: str,
        detail: str = "",
        region: str = "",
    ) -> None:
        super().__init__(action, number, hint, detail)
        self.args = (action, number, hint, detail, region)
        self.region = region


class BitstreamError(AcceleratorError):
    """A bitstream must not be loaded, or is not available.

    :param image: ID of the Glance image, or the path of a file.
    :param reason: the cause and what to do.
    :param is_local: True where another host may be able to load it.
    :param public: the reason for the owner of the server; empty for
        ``reason``, which must not quote another library's exception then.
    """

    def __init__(
        self,
        image: str,
        reason: str,
        is_local: bool = False,
        public: str = "",
    ) -> None:
        super().__init__(
            f"bitstream {image}: {reason}", image, reason, is_local, public
        )
        self.image = image
        self.reason = reason
        self.is_local = is_local
        self._public = public

    @property
    def public(self) -> str:
        """Return the message for the owner of the server.

        It includes the reason where the image itself is the cause.
        """
        if self.is_local:
            return f"bitstream {self.image}: the host can't provide it now"
        return f"bitstream {self.image}: {self._public or self.reason}"


class ToolError(AcceleratorError):
    """A vendor's tool failed.

    :param command: the tool and its arguments.
    :param status: its exit status; negative for the signal that killed it.
    :param output: its output, shortened.
    """

    def __init__(self, command: str, status: int, output: str) -> None:
        super().__init__(
            f"{command} ended with {status}: {output or 'no output'}",
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
    :param reason: the cause and what to do.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}", path, reason)
        self.path = path
        self.reason = reason


class BusyError(AcceleratorError):
    """Another pass holds the lock of this host for too long.

    :param path: the lock file.
    :param seconds: how long this process waited for the lock.
    """

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(
            f"another placement-sync has held {path} for {seconds:.0f} s;"
            " check what that process waits for",
            path,
            seconds,
        )
        self.path = path
        self.seconds = seconds


class DomainsError(AcceleratorError):
    """The host devices of the guests can't be read.

    :param source: the hypervisor: an entry point's name or an address.
    :param reason: the cause and what to do.
    :param public: the reason for the owner of the server; empty for a
        general one.
    """

    def __init__(self, source: str, reason: str, public: str = "") -> None:
        super().__init__(
            f"domains of {source}: {reason}", source, reason, public
        )
        self.source = source
        self.reason = reason
        self._public = public

    @property
    def public(self) -> str:
        return self._public or super().public


class ServiceError(AcceleratorError):
    """Placement, Nova or Keystone refused a request, or did not answer.

    :param method: HTTP method of the request.
    :param path: its path with the query.
    :param status: HTTP status of the response; None without a valid
        response, and then the request may have been carried out or not.
    :param reason: the service's message, or the failure and what to do.
    :param code: error code of the service, such as
        ``placement.concurrent_update``; empty without one.
    :param is_lasting: True where a request without a response will fail
        again until an operator acts (a wrong password, for example).
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
        result = f" {status}" if status is not None else ""
        super().__init__(
            f"{method} {path}:{result} {reason}",
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
        """Return whether the request conflicts with another change (409)."""
        return self.status == _CONFLICT

    @property
    def is_forbidden(self) -> bool:
        """Return whether the user may not send the request (403)."""
        return self.status == _FORBIDDEN

    @property
    def is_transient(self) -> bool:
        """Return whether the same request may succeed later.

        True without a response, for 429 and for 5xx.
        """
        if self.status is None:
            return not self.is_lasting
        return self.status == _TOO_MANY or self.status >= _SERVER_FAILED
