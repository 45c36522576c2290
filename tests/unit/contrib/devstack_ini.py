# SPDX-License-Identifier: Apache-2.0
"""Options of an INI file in which one may have several lines.

``set FILE SECTION OPTION [VALUE...]`` replaces the lines of an option, and
``get FILE SECTION OPTION`` prints the value of the first one, or an empty
line, as DevStack's functions of these names do.
"""

import pathlib
import sys

Lines = dict[str, list[tuple[str, str]]]


def read(path: pathlib.Path) -> Lines:
    sections: Lines = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line:
            name, _, value = line.partition("=")
            pair = (name.strip(), value.strip())
            sections.setdefault(section, []).append(pair)
    return sections


def main(verb: str, file: str, section: str, option: str, *new: str) -> None:
    path = pathlib.Path(file)
    sections = read(path)
    pairs = sections.get(section, [])
    if verb == "get":
        print(next((value for name, value in pairs if name == option), ""))
        return
    others = [pair for pair in pairs if pair[0] != option]
    sections[section] = others + [(option, value) for value in new]
    path.write_text(
        "".join(
            f"[{name}]\n" + "".join(f"{o} = {v}\n" for o, v in pairs)
            for name, pairs in sections.items()
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
