# SPDX-License-Identifier: Apache-2.0
"""Corrections of a host, as values and as phrases of a report.

Each phrase that asks an operator to change what this library reads is the
text of one of these values; ``nova_accel.inventory.printed_remedies`` returns
the values of a text. Tests apply each printed one to the host of its report,
and require that the device is offered then.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpecLine:
    """Add a line to ``device_spec``; ``num_vfs`` takes effect at a start.

    ``others`` are the other keys, with their values as JSON.
    """

    address: str
    use: str = ""
    num_vfs: int | None = None
    others: tuple[tuple[str, str], ...] = ()

    @classmethod
    def build(cls, fields: Mapping[str, Any]) -> "SpecLine":
        """Return the line of some keys and values."""
        own = ("address", "use", "num_vfs")
        return cls(
            **{key: fields[key] for key in own if key in fields},
            others=tuple(
                (key, json.dumps(value))
                for key, value in fields.items()
                if key not in own
            ),
        )

    @property
    def fields(self) -> dict[str, Any]:
        """Return the keys and values of the line."""
        fields: dict[str, Any] = {"address": self.address}
        if self.use:
            fields["use"] = self.use
        if self.num_vfs is not None:
            fields["num_vfs"] = self.num_vfs
        return fields | {key: json.loads(text) for key, text in self.others}

    def __str__(self) -> str:
        return f"device_spec = {json.dumps(self.fields)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BindFunction:
    """Bind a function to another kernel driver."""

    function: str
    driver: str

    def __str__(self) -> str:
        return f"bind {self.function} to {self.driver}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BindVfs:
    """Bind the VFs of a PF that have a driver, or none, to another one.

    ``before`` is the present driver of these VFs, empty for none.
    """

    function: str
    before: str
    driver: str

    def __str__(self) -> str:
        present = f"on {self.before}" if self.before else "without a driver"
        return (
            f"bind the virtual functions of {self.function} {present}"
            f" to {self.driver}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteAttribute:
    """Write a word to an attribute of a function."""

    function: str
    name: str
    value: str

    def __str__(self) -> str:
        return f"write {self.value} to {self.name} of {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MoveCard:
    """Move a card into a slot that shares its IOMMU group with no other."""

    function: str

    def __str__(self) -> str:
        return f"put the card of {self.function} in a slot of its own"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IsolateFunctions:
    """Have the ports above a card isolate its functions from one another.

    Each function has an IOMMU group of its own then.
    """

    function: str

    def __str__(self) -> str:
        return f"switch on ACS and ARI in the firmware for {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnableSriov:
    """Switch on SR-IOV of a PF, whose model is known to have it.

    The setting is in the setup of the host or of the card.
    """

    function: str

    def __str__(self) -> str:
        return f"switch on SR-IOV in the firmware for {self.function}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadModule:
    """Load a kernel module that is installed, and not loaded."""

    module: str

    def __str__(self) -> str:
        return f"load the module {self.module}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstallModule:
    """Install a vendor's package with a kernel module.

    ``package`` is its name for operators.
    """

    package: str
    module: str

    def __str__(self) -> str:
        return f"install {self.package} (module {self.module})"


Remedy = (
    SpecLine
    | BindFunction
    | BindVfs
    | WriteAttribute
    | MoveCard
    | IsolateFunctions
    | EnableSriov
    | LoadModule
    | InstallModule
)


def describe_binding(
    functions: Sequence[str], pf: str, before: str, driver: str
) -> str:
    """Return the phrase that binds VFs of a PF to a driver.

    :param functions: the addresses of all its VFs with the driver before.
    :param before: their driver, empty for none.
    """
    if len(functions) == 1:
        return str(BindFunction(function=functions[0], driver=driver))
    return str(BindVfs(function=pf, before=before, driver=driver))
