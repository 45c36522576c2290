# SPDX-License-Identifier: Apache-2.0
"""Ways to reset the functions that go to one guest.

A function has methods of its own, or its bus is reset with all functions on
it. The kernel lists a method when it finds the function, and the first
function of a card is found before the others are on the bus. Therefore
``bus`` may be listed although a write to ``reset`` is refused later
(drivers/pci/pci.c, pci_parent_bus_reset: ENOTTY).

``nova-accel doctor``, the vendor drivers and the scrub share this module.
"""

import dataclasses
from collections.abc import Sequence

from nova_accel.config import remedy

# Methods that reset each function on the bus, refused for one of several.
_BUS_METHODS = frozenset({"bus", "cxl_bus"})
# Method of a function on a kernel that does not name it (before 5.15).
UNNAMED = "reset"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedFunction:
    """A function of a guest, and how the kernel can reset it.

    ``bound`` is its driver, empty for none; ``driver`` is the same for a
    driver of the host, and empty for those that hold functions for guests.
    ``methods`` are the words of ``reset_method``. ``is_known`` is False
    where these files do not show whether there is a method. ``is_disabled``
    is True if all methods were disabled. ``unread`` is the error of a
    ``reset_method`` that can't be read.
    """

    address: str
    driver: str = ""
    bound: str = ""
    methods: tuple[str, ...] = ()
    is_known: bool = True
    is_disabled: bool = False
    unread: str = ""

    @property
    def has_bus_method(self) -> bool:
        """Return whether the kernel could reset its bus when it was found."""
        return not _BUS_METHODS.isdisjoint(self.methods) or (
            UNNAMED in self.methods
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BusFunctions:
    """The functions of one guest on one PCI bus, the assigned one first.

    ``others`` are the other functions on the bus. ``bridge`` is the port
    above it, empty for a root bus, which can't be reset.
    """

    functions: tuple[ReleasedFunction, ...]
    others: tuple[str, ...] = ()
    bridge: str = ""

    @property
    def is_bus_alone(self) -> bool:
        """Return whether a reset of the bus affects only this guest."""
        return bool(self.bridge) and not self.others

    @property
    def is_reset_together(self) -> bool:
        """Return whether a reset of the bus is the way to reset them.

        It is where a function has no method of its own. ``vfio-pci`` does
        the same when it closes the last function
        (vfio_pci_dev_set_try_reset).
        """
        return (
            self.is_bus_alone
            and any(f.has_bus_method for f in self.functions)
            and not all(map(self.methods_of, self.functions))
        )

    @property
    def is_resettable(self) -> bool:
        """Return whether the kernel can reset the assigned function."""
        return self.is_reset_together or bool(
            self.methods_of(self.functions[0])
        )

    @property
    def is_unknown(self) -> bool:
        """Return whether these files do not show how it can be reset."""
        return not self.is_resettable and any(
            not function.is_known for function in self.functions
        )

    def methods_of(self, function: ReleasedFunction) -> tuple[str, ...]:
        """Return the methods that reset a function without the others."""
        if len(self.functions) + len(self.others) == 1:
            return function.methods
        return tuple(m for m in function.methods if m not in _BUS_METHODS)

    def split(self) -> tuple["BusFunctions", tuple[ReleasedFunction, ...]]:
        """Return these functions without those that can't be reset.

        :returns: the resettable ones, and the others.
        """
        if self.is_reset_together:
            return self, ()
        reset = tuple(f for f in self.functions if self.methods_of(f))
        rest = tuple(f for f in self.functions if f not in reset)
        others = (*self.others, *(f.address for f in rest))
        return dataclasses.replace(self, functions=reset, others=others), rest

    def describe(self) -> str:
        """Return the reset as a phrase: ``flr``, ``bus of both ...``."""
        if self.is_reset_together:
            return f"bus of {self._count} functions through {self.bridge}"
        if self.is_unknown:
            return "unknown"
        if not self.is_resettable:
            return f"none: {self.explain_none()}"
        words = {
            function.address: " ".join(self.methods_of(function)) or "none"
            for function in self.functions
        }
        if len({*words.values()}) == 1:
            return words[self.functions[0].address]
        return ", ".join(f"{word} ({name})" for name, word in words.items())

    def explain_none(self) -> str:
        """Return why the assigned function can't be reset."""
        first = self.functions[0]
        if first.is_disabled:
            step = remedy.WriteAttribute(
                function=first.address, name="reset_method", value="default"
            )
            return f"its resets are disabled; {step}"
        if not any(f.has_bus_method for f in self.functions):
            return "the kernel knows no way to reset it"
        if not self.bridge:
            return "it is on a root bus, which can't be reset"
        return (
            f"only its bus can be reset, and {', '.join(self.others)} on it"
            " would be reset too, without going to the same guest"
        )

    @property
    def _count(self) -> str:
        count = len(self.functions)
        return {2: "both"}.get(count, f"all {count}")


def find_unresettable(
    buses: Sequence[BusFunctions],
) -> BusFunctions | None:
    """Return the first bus whose functions can't be reset, if any."""
    return next(
        (b for b in buses if not (b.is_resettable or b.is_unknown)), None
    )


def describe(buses: Sequence[BusFunctions]) -> str:
    """Return the resets of all functions of a guest as a phrase."""
    return "; ".join(dict.fromkeys(bus.describe() for bus in buses))
