# SPDX-License-Identifier: Apache-2.0
"""Options of commands, each named once in a page of HTML.

The first command explains an option; others that explain it in the same words
name that command. A usage names the options together that are listed below it.
"""

import re
from typing import Any

from docutils import nodes

#: The page on which ``autoprogram-cliff`` prints all commands.
PAGE = "reference/openstack"
# An option that may be left out, as "[--wait [SECONDS]]", but none of a group
# of which one excludes the others, as "[--all | --free]".
_OPTIONAL = re.compile(r" \[-(?:(?! \| )[^][]|\[[^]]*\])*\]")


def shorten_usage(usage: str) -> str:
    """Return a usage in one line, with ``[options]`` for the optional ones."""
    words = " ".join(usage.split())
    return _OPTIONAL.sub("", _OPTIONAL.sub(" [options]", words, count=1))


def has_options_only(usage: str) -> bool:
    """Return whether a shortened usage has no more than sets of options."""
    return re.fullmatch(r"[^][()]*( \[(host )?options\])+", usage) is not None


def drop_repeated(document: nodes.Element) -> None:
    """Remove each option that an earlier section has in the same words.

    The line that names the earlier sections has the ids of these options, so
    that links and results of a search lead to it.
    """
    first: dict[str, nodes.Element] = {}
    repeated: dict[nodes.Element, list[nodes.Element]] = {}
    for option in document.findall(nodes.Element):
        if option.get("objtype") == "option":
            section = option.parent
            if first.setdefault(option.astext(), section) is not section:
                repeated.setdefault(section, []).append(option)
    for section, options in repeated.items():
        sources = dict.fromkeys(first[each.astext()] for each in options)
        line = _name_sections(list(sources))
        for option in options:
            for element in option.findall(nodes.Element):
                line["ids"] += element["ids"]
            section.remove(option)
        section.append(line)


def _name_sections(sections: list[nodes.Element]) -> nodes.paragraph:
    line = nodes.paragraph("", "More options: as in ")
    for number, section in enumerate(sections):
        title = next(section.findall(nodes.title)).astext()
        line += nodes.Text(", " if number else "")
        line += nodes.reference(
            "", title, internal=True, refid=section["ids"][0]
        )
    line += nodes.Text(".")
    return line


def _resolve(app: Any, document: nodes.document, name: str) -> None:
    # A man page is read from its begin to its end.
    if name == PAGE and app.builder.format == "html":
        drop_repeated(document)
        for block in list(document.findall(nodes.literal_block)):
            usage = shorten_usage(block.astext())
            block[:] = [nodes.Text(usage)]
            if has_options_only(usage):
                block.parent.remove(block)


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx; return that pages may be read in parallel."""
    app.connect("doctree-resolved", _resolve)
    return {"parallel_read_safe": True}
