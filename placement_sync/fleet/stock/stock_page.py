# SPDX-License-Identifier: Apache-2.0
"""Page of the stock: levels of public flavors, for everyone."""

import html

from placement_sync.fleet.stock import stock_file

NAME = "stock.html"
MODE = 0o644
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="refresh" content="60">
<title>Stock of accelerators</title>
<style>
body {{ font-family: sans-serif; margin: 2em; }}
td, th {{ padding: .3em 1em; text-align: left; }}
.none {{ color: #a00; }} .many {{ color: #070; }}
</style>
</head>
<body>
<h1>Stock of accelerators</h1>
<p>As of {as_of}; not valid after {until}. None: no server can start. Few: at
least one can. Many: one can still start after {starts} others.</p>
<table>
<tr><th>Flavor</th><th>Now</th><th>Since</th></tr>
{rows}</table>
</body>
</html>
"""


def render(stock: stock_file.CloudStock) -> str:
    """Return the page: no numbers, no private flavors, no project's hosts."""
    return _PAGE.format(
        as_of=html.escape(stock.as_of),
        until=stock.valid_until.isoformat(timespec="seconds"),
        starts=stock.starts,
        rows="".join(
            _render_row(flavor.name, flavor.stocks[stock_file.OTHERS])
            for flavor in stock.flavors
            if flavor.is_public
        ),
    )


def _render_row(name: str, stock: stock_file.Stock) -> str:
    return (
        f'<tr><td>{html.escape(name)}</td><td class="{stock.level}">'
        f"{stock.level}</td><td>{html.escape(stock.since)}</td></tr>\n"
    )
