# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, each with what the operator should do next."""

import errno as _errno
import os


class AcceleratorError(Exception):
    """Base of every error this library raises on purpose.

    ``args`` are what its class was called with: oslo.privsep and pickle
    rebuild an error of another process from them.
    """

    def __init__(self, message: str, *arguments: object) -> None:
        super().__init__(*(arguments or (message,)))
        self._message = message

    def __str__(self) -> str:
        """Return the message."""
        return self._message


class ConfigurationError(AcceleratorError):
    """A value in nova.conf can't be used.

    :param option: the option as the operator wrote it, with its group.
    :param value: the offending text.
    :param mend: what to write instead.
    """

    def __init__(self, option: str, value: str, mend: str) -> None:
        super().__init__(
            f"nova.conf {option} = {value}: {mend}", option, value, mend
        )
        self.option = option
        self.value = value
        self.mend = mend


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
    """

    def __init__(self, consumer: str, reason: str) -> None:
        super().__init__(
            f"accelerators of server {consumer}: {reason}", consumer, reason
        )
        self.consumer = consumer
        self.reason = reason


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
