# SPDX-License-Identifier: Apache-2.0
"""Page of extra specs, filled from nova_accel.catalog.extra_specs."""

import textwrap
from collections.abc import Iterator
from typing import Any

from nova_accel.catalog import extra_specs
from nova_accel.model import flavors

#: The line of the page that the table replaces, a comment to Sphinx.
MARK = ".. extra specs of nova_accel.catalog.extra_specs\n"
_WIDTH = 77


def filled(source: str) -> str:
    """Return the page's source with every extra spec in it.

    :raises ValueError: the page has no line for them.
    """
    if source.count(MARK) != 1:
        raise ValueError(f"one line {MARK!r} is needed in the page")
    return source.replace(MARK, "\n".join(map(_entry, extra_specs.TABLE)))


def _entry(spec: extra_specs.ExtraSpec) -> str:
    body = "\n\n".join(_paragraphs(spec))
    return f"``{spec.name}``\n{textwrap.indent(body, '    ')}\n"


def _paragraphs(spec: extra_specs.ExtraSpec) -> Iterator[str]:
    default = f"``{spec.default}``" if spec.default else spec.default_in_words
    yield textwrap.fill(spec.meaning, _WIDTH)
    if spec.choices:
        yield "\n".join(
            f"* ``{value}``: {meaning}"
            for value, meaning in spec.choices.items()
        )
    else:
        yield f"Value: {spec.form_in_words}."
    pair = f"{flavors.NAMESPACE}{spec.key}={spec.example}"
    yield (
        f"Default: {default}. Since {spec.since}."
        f" Example: ``--property {pair}``."
    )


def _read(_app: Any, docname: str, source: list[str]) -> None:
    if docname == "user/extra-specs":
        source[0] = filled(source[0])


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx; return that pages may be read in parallel."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
