# SPDX-License-Identifier: Apache-2.0
"""Notes on devices that failed, one file each; they outlive a restart.

What a server holds, Nova remembers. That a region must not be given to
the next server, nobody else does.
"""

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import tempfile
import threading
import urllib.parse
from collections.abc import Iterable

from nova_accel import errors, faults, model

LOG = logging.getLogger(__name__)

_SUFFIX = ".json"
_TEXTS = ("address", "reason", "when")
_FIELDS = tuple(field.name for field in dataclasses.fields(model.Fault))


class Quarantine:
    """The faults of one host's devices. Thread-safe.

    A fault that can't be written down counts all the same, until the
    service ends.
    """

    def __init__(self, state_dir: str) -> None:
        """Keep notes in ``faulted`` below a directory; none is made yet."""
        self.place = os.path.join(state_dir, "faulted")
        self._unwritten: dict[str, model.Fault] = {}
        self._guard = threading.Lock()

    def read(self) -> faults.Faults:
        """Return the faults by address; one that can't be read counts too.

        :raises UnreadableError: the directory can't be listed.
        """
        with self._guard:
            found = dict(self._unwritten)
        try:
            names = sorted(os.listdir(self.place))
        except FileNotFoundError:
            return found
        except OSError as error:
            raise errors.UnreadableError(
                self.place, error.errno or 0
            ) from error
        for name in names:
            if name.endswith(_SUFFIX):
                fault = self._read(name)
                if fault is not None:
                    found[fault.address] = fault
        return found

    def put(self, address: str, reason: str, function: str | None) -> None:
        """Set a device aside.

        :param function: what its region holds now, None if unknown.
        """
        now = datetime.datetime.now(datetime.UTC)
        fault = model.Fault(
            address=address,
            reason=reason,
            function=function,
            when=now.isoformat(timespec="seconds"),
        )
        LOG.error("%s is set aside: %s", address, reason)
        with self._guard:
            try:
                self._write(fault)
                self._unwritten.pop(address, None)
            except OSError as error:
                self._unwritten[address] = fault
                LOG.error(
                    "that %s failed can't be written down (%s): it is"
                    " forgotten when this service ends; mend [nova_accel]"
                    " state_dir",
                    address,
                    error,
                )

    def heal(self, addresses: Iterable[str]) -> frozenset[str]:
        """Forget the faults of some devices; return which there were.

        :raises OSError: a note can't be removed.
        """
        healed = set()
        for address in addresses:
            with self._guard:
                if self._unwritten.pop(address, None) is not None:
                    healed.add(address)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(address))
                    healed.add(address)
        return frozenset(healed)

    def _path(self, address: str) -> str:
        name = urllib.parse.quote(address, safe="")
        return os.path.join(self.place, f"{name}{_SUFFIX}")

    def _write(self, fault: model.Fault) -> None:
        os.makedirs(self.place, mode=0o755, exist_ok=True)
        descriptor, half = tempfile.mkstemp(prefix=".", dir=self.place)
        try:
            with open(descriptor, "w", encoding="utf-8") as new:
                json.dump(dataclasses.asdict(fault), new, indent=2)
            os.replace(half, self._path(fault.address))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(half)
            raise

    def _read(self, name: str) -> model.Fault | None:
        path = os.path.join(self.place, name)
        try:
            with open(path, encoding="utf-8") as note:
                fields = json.load(note)
            found = {key: fields[key] for key in _FIELDS}
            if not all(isinstance(found[key], str) for key in _TEXTS):
                raise ValueError("a text is missing")
            return model.Fault(**found)
        except FileNotFoundError:
            return None  # healed since it was listed
        except (OSError, ValueError, LookupError, TypeError) as error:
            return model.Fault(
                address=urllib.parse.unquote(name.removesuffix(_SUFFIX)),
                reason=f"why, {path} does not tell any more ({error})",
            )
