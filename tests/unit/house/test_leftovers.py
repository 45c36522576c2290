# SPDX-License-Identifier: Apache-2.0
"""No leftovers of merges: markers, empty sections, repeated paragraphs."""

import collections
import re
from pathlib import Path

import pytest

from tests.unit.docs import pages
from tests.unit.house import sources

# Lines that git writes between two versions.
MARKER = re.compile(r"^(<{7}|={7}|>{7}|\|{7})(?: .*)?$", re.MULTILINE)
# A title of reStructuredText, with the characters of its overline, if any,
# and of its underline.
TITLE = re.compile(
    r"(?:\A|(?<=\n\n))(?:(?P<over>[=~^\"'#*+.-])(?P=over){2,}\n)?"
    r"(?P<title>\S.*)\n(?P<line>(?P<under>[=~^\"'#*+.-])(?P=under){2,})(?=\n|\Z)"
)
EMPTY_KEY = re.compile(
    r"^(?:[a-z_]+:|  - \|)\n(?=[a-z]|\Z)|^  - \|\n(?=  - |[a-z]|\Z)",
    re.MULTILINE,
)
# Length of a paragraph that is not written twice by chance.
LONG = 100
NOTES = sorted((sources.ROOT / "releasenotes/notes").glob("*.yaml"))
TEXTS = [
    path
    for path in sources.FILES
    if path.suffix in {".cfg", ".j2", ".md", ".py", ".rst", ".sh", ".toml"}
    or path.suffix in {".txt", ".yaml", ".yml"}
]


def find_markers(text: str) -> list[str]:
    """Return the lines that git left, titles of seven characters not."""

    def drop(title: re.Match[str]) -> str:
        is_whole = len(title["title"]) == len(title["line"])
        return "" if is_whole else title[0]

    return [match[0] for match in MARKER.finditer(TITLE.sub(drop, text))]


def find_empty(text: str) -> list[str]:
    """Return the titles of sections without content.

    A section that begins with a subsection has content.
    """
    text = re.sub(r"(?m)^\.\. _[\w-]+:$", "", text).rstrip() + "\n"
    levels: list[tuple[str | None, str]] = []
    empty = []
    titles = list(TITLE.finditer(text))
    for match, after in zip(titles, [*titles[1:], None], strict=True):
        kind = (match["over"], match["under"])
        if kind not in levels:
            levels.append(kind)
        end = after.start() if after else len(text)
        if text[match.end() : end].strip():
            continue
        below = after and (after["over"], after["under"])
        if below is None or (
            below in levels and levels.index(below) <= levels.index(kind)
        ):
            empty.append(match["title"])
    return empty


def test_no_text_has_a_marker_of_a_merge() -> None:
    hits = [
        f"{sources.relative(path)}: {marker}"
        for path in TEXTS
        for marker in find_markers(path.read_text(errors="replace"))
    ]
    assert TEXTS
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_each_section_of_a_page_has_content(page: Path) -> None:
    assert find_empty(page.read_text()) == []


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_no_paragraph_of_a_page_is_repeated(page: Path) -> None:
    counts = collections.Counter(
        " ".join(paragraph.split())
        for paragraph in re.split(r"\n\s*\n", page.read_text())
    )
    repeated = [
        text
        for text, count in counts.items()
        if count > 1 and (len(text) > LONG or text.startswith(".. command"))
    ]
    assert not repeated


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_each_section_of_a_note_has_content(note: Path) -> None:
    assert not EMPTY_KEY.search(note.read_text())


PAGE = """\
=====
Title
=====

First
=====

Words.

Options
=======

Deeper
------

More.
"""


def test_a_page_without_leftovers_is_accepted() -> None:
    assert find_markers(PAGE) == []
    assert find_empty(PAGE) == []


@pytest.mark.parametrize(
    "leftover",
    ["<<<<<<< HEAD\n", "=======\nWords.\n", ">>>>>>> 1234567 (subject)\n"],
)
def test_a_leftover_is_found(leftover: str) -> None:
    assert len(find_markers(f"{PAGE}{leftover}")) == 1


@pytest.mark.parametrize("title", ["Options\n=======", "Deeper\n------"])
def test_an_empty_section_is_found(title: str) -> None:
    (name,) = find_empty(f"{PAGE}\n{title}\n")
    assert name == title.partition("\n")[0]
