# SPDX-License-Identifier: Apache-2.0
"""Manifest of the changes that a role has made on a host.

The manifest of a role is ``ROLE.json`` in one directory. It is written before
the change it describes, so that an interrupted run can be repeated or undone:
an undo skips changes that were not made.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re

DIRECTORY = "/var/lib/nova-accel/drivers"
FORMAT = 1
BEGIN = "# BEGIN nova-accel: {0}"
# The line before had no end, and gets one.
BEGIN_JOINED = "# BEGIN nova-accel, new line: {0}"
END = "# END nova-accel: {0}"
# Marks lines of other packages' files that a role switches off.
DISABLED = "# nova-accel {0}: "
_BOOT = "/proc/sys/kernel/random/boot_id"


class ManifestError(Exception):
    """A change can't be recorded or undone; the text says what to do."""


def exit_module(module, run):
    """End a module with the result of its function, or with its error."""
    try:
        module.exit_json(**run(module))
    except (ManifestError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))


def hash_text(text):
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def build_diff(path, before, after):
    """Return the changed lines of a file, as Ansible prints them.

    No other line is in it: a nova.conf has passwords.
    """
    lines = difflib.unified_diff(
        (before or "").splitlines(keepends=True),
        (after or "").splitlines(keepends=True),
        path,
        path,
        n=0,
    )
    return {"prepared": "".join(lines)}


def read_text(path):
    """Return the text of a file, None if it does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def read_boot():
    """Return the id of the running boot of the kernel."""
    return (read_text(_BOOT) or "").strip()


def set_block(text, role, block, part=""):
    """Return a file's text with a block of a role.

    A new block is at the end.

    :param part: name of the block, where a role has several in one file.
    """
    name = f"{role} {part}" if part else role
    lines = f"{block.rstrip()}\n{END.format(name)}\n"
    pattern = _compile_block(re.escape(name))
    if pattern.search(text):
        return pattern.sub(lambda match: f"{match[1]}\n{lines}", text)
    begin = BEGIN.format(name)
    if text and not text.endswith("\n"):
        begin = "\n" + BEGIN_JOINED.format(name)
    return f"{text}{begin}\n{lines}"


def remove_blocks(text, role):
    """Return a file's text without the blocks of a role."""
    return _compile_block(rf"{re.escape(role)}(?: \w+)?").sub("", text)


def _compile_block(name):
    """Return a pattern of a block; its first group is the first line."""
    begin, joined, end = (
        re.escape(mark).replace(r"\{0\}", name)
        for mark in (BEGIN, BEGIN_JOINED, END)
    )
    return re.compile(
        rf"(^{begin}|\n{joined})\n.*?^{end}\n", re.MULTILINE | re.DOTALL
    )


def disable_lines(text, role, pattern):
    """Return a file's text with its matching lines made comments.

    Lines that begin with a space continue the line before. The blocks of the
    role are left.
    """
    parts, end = [], 0
    for block in _compile_block(rf"{re.escape(role)}(?: \w+)?").finditer(text):
        parts.append(_disable_lines(text[end : block.start()], role, pattern))
        parts.append(block[0])
        end = block.end()
    return "".join((*parts, _disable_lines(text[end:], role, pattern)))


def _disable_lines(text, role, pattern):
    compiled = re.compile(pattern)
    mark = DISABLED.format(role)
    lines = []
    is_disabled = False
    for line in text.splitlines(keepends=True):
        is_continued = is_disabled and line[:1] in (" ", "\t")
        is_disabled = is_continued or bool(compiled.match(line))
        lines.append(mark + line if is_disabled else line)
    return "".join(lines)


def enable_lines(text, role):
    """Return a file's text with the lines of ``disable_lines`` restored."""
    return re.sub(
        rf"^{re.escape(DISABLED.format(role))}", "", text, flags=re.M
    )


def _remove_empty(directories):
    for path in directories:
        try:
            os.rmdir(path)
        except OSError:
            continue  # another role has files there


class Manifest:
    """Manifest of one role; ``data`` is its content."""

    def __init__(self, directory, role):
        """Read the manifest.

        :raises ManifestError: the file exists and can't be used.
        """
        if not re.fullmatch(r"[a-z][a-z0-9_]*", role):
            raise ManifestError(f"{role!r} is no name of a role")
        self.path = os.path.join(directory, f"{role}.json")
        self.role = role
        self.data = {
            "format": FORMAT,
            "role": role,
            "boot": "",
            "directories": [],
            "files": {},
            "edited": [],
            "effects": [],
            "pending": [],
            "packages": [],
            "services": {},
            "values": {},
        }
        text = read_text(self.path)
        self.exists = text is not None
        if text is not None:
            self.data.update(self._parse(text))

    def _parse(self, text):
        hint = "use the release that wrote it, or repair the file"
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ManifestError(f"{self.path}: {error}; {hint}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ManifestError(f"{self.path}: not of format {FORMAT}; {hint}")
        return data

    def save(self):
        """Replace the file; it is on the disk when this returns."""
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        temporary = f"{self.path}.new"
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(self.data, file, indent=1, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        self.exists = True

    def remove(self):
        """Remove the file, and its two directories if they are empty."""
        os.unlink(self.path)
        directory = os.path.dirname(self.path)
        _remove_empty((directory, os.path.dirname(directory)))

    def record_file(self, path, before, mode, text):
        """Record that a file of the role's own gets a text.

        :param before: its text now, None if it does not exist.
        """
        record = self.data["files"].setdefault(
            path, {"before": before, "mode": mode}
        )
        record["sha256"] = hash_text(text)
        self._record_directories(os.path.dirname(path))

    def record_edit(self, path):
        """Record that a file of another package is edited."""
        if path not in self.data["edited"]:
            self.data["edited"].append(path)

    def record_effects(self, effects):
        """Record commands that have to follow a change of files."""
        for key in ("effects", "pending"):
            names = self.data[key]
            names.extend(name for name in effects if name not in names)

    def record_boot(self):
        """Record that a change takes effect at the next start."""
        self.data["boot"] = read_boot()

    def _record_directories(self, path):
        """Record the directories that have to be created for a file."""
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        names = self.data["directories"]
        names.extend(name for name in missing if name not in names)

    def plan_restore(self, read):
        """Return path, text and mode of each file that changes.

        A text of None removes the file.

        :param read: returns text and mode of a file.
        :raises ManifestError: a file was changed after the role wrote it.
        """
        changes = []
        for path, record in sorted(self.data["files"].items()):
            text, _mode = read(path)
            if text == record["before"]:
                continue
            if text is not None and hash_text(text) != record["sha256"]:
                raise ManifestError(
                    f"{path} was changed after the role {self.role} wrote it;"
                    " save your lines, remove the file, and run again"
                )
            changes.append((path, record["before"], record["mode"]))
        for path in self.data["edited"]:
            text, mode = read(path)
            if text is None:
                continue
            restored = enable_lines(remove_blocks(text, self.role), self.role)
            if restored != text:
                changes.append((path, restored, mode))
        return changes

    def remove_directories(self):
        """Remove the directories that were created, if they are empty."""
        _remove_empty(sorted(self.data["directories"], key=len, reverse=True))
