"""Parts of an HTML page that needs nothing but itself: escaped text, tables, line charts as SVG, pictures inside.

    page("title", [section("Curves", charts([chart("Return", "return", lines)])), section("Config", table(head, rows))])

Every value that comes from a run is escaped here, by the one function `text`, and the page forbids scripts and any
request (a Content-Security-Policy): a hostile name or config can neither run nor load anything. Light and dark follow
the reader's system. A chart shows the values under the pointer, by styles alone.
"""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import read_bytes
from striderl.loggers.console_logger import short_number

Numbers = np.ndarray[Any, np.dtype[np.float64]]

NUM_COLOURS = 7
"""How many lines of a chart have a colour of their own; further ones repeat them."""
MEDIA_BYTES = 12_000_000
"""The largest video that is put into a page; a larger one is named."""
BEGINNING = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    'img-src data:; media-src data:">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
)
"""How every page begins, by which a later one recognises what it may replace."""
_MEDIA = {".mp4": "video/mp4", ".gif": "image/gif", ".png": "image/png"}
_MAGIC = {".mp4": (b"ftyp", 4), ".gif": (b"GIF8", 0), ".png": (b"\x89PNG", 0)}
_WIDTH, _HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 34
_HOVER = 48
_PLACE = re.compile(r'<section id="([a-z0-9-]+)"><h2>([^<]*)</h2>')
_MOST_POINTS = 300
_BOTH = np.array([-1.0, 1.0])


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """One line of a chart."""

    label: str
    """Its name in the legend and under the pointer."""
    x: Numbers
    """Shape: [P], growing."""
    y: Numbers
    """Shape: [P]."""
    half_width: Numbers = field(default_factory=lambda: np.zeros(0))
    """Half of the interval around y, drawn as a band; empty for none. Shape: [P]."""
    behind: tuple[tuple[Numbers, Numbers], ...] = ()
    """Thin lines of the same colour: the single seeds."""
    colour: int = 0
    """Which colour."""


def text(value: object) -> str:
    """Return a value as text that HTML shows and never interprets."""
    return html.escape(str(value), quote=True)


def page(title: str, parts: Iterable[str]) -> str:
    """Return a whole document; `parts` are HTML already."""
    body = "\n".join(parts)
    head = f"<title>{text(title)}</title>\n<style>{_STYLE}</style></head>"
    return f"{BEGINNING}{head}\n<body><main>\n{body}\n</main></body></html>\n"


def section(title: str, *content: str, name: str = "") -> str:
    """Return a titled part of the page; nothing where it has no content."""
    inner = "\n".join(part for part in content if part)
    anchor = f' id="{text(name)}"' if name else ""
    return f"<section{anchor}><h2>{text(title)}</h2>\n{inner}</section>" if inner else ""


def contents(sections: Iterable[str], runs: Mapping[str, str]) -> str:
    """Return links to the sections of the page, or to its runs (name of the place: title) where there are several."""
    found = dict(_PLACE.findall("\n".join(sections)))
    own = {place: title for place, title in found.items() if not runs or "-" not in place}
    links = [f'<a href="#{place}">{title}</a>' for place, title in own.items()]
    links += [f'<a href="#{text(place)}">{text(title)}</a>' for place, title in runs.items()]
    return f"<nav>{''.join(links)}</nav>" if links else ""


def paragraph(value: object, kind: str = "") -> str:
    """Return a paragraph of escaped text."""
    return f'<p class="{text(kind)}">{text(value)}</p>' if kind else f"<p>{text(value)}</p>"


def code(value: object) -> str:
    """Return a block of escaped text as it is."""
    return f"<pre>{text(value)}</pre>"


def details(title: str, content: str) -> str:
    """Return content that is folded until it is asked for; `content` is HTML already."""
    return f"<details><summary>{text(title)}</summary>{content}</details>"


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Return the key numbers, (name, value) each."""
    inner = "".join(f"<div><b>{text(value)}</b><span>{text(name)}</span></div>" for name, value in values)
    return f'<div class="tiles">{inner}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[int] = ()) -> str:
    """Return a table of escaped cells; the columns `numbers` are aligned to the right. Nothing without rows."""

    def cells(kind: str, values: Sequence[object]) -> str:
        right = ' class="number"'
        return "".join(
            f"<{kind}{right if index in numbers else ''}>{text(value)}</{kind}>" for index, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{cells("th", head)}</tr>{body}</table></div>' if body else ""


def charts(found: Iterable[str]) -> str:
    """Return charts side by side, as many as fit."""
    inner = "".join(found)
    return f'<div class="charts">{inner}</div>' if inner else ""


def legend(labels: Sequence[str]) -> str:
    """Return the names of the colours."""
    inner = "".join(f'<span class="c{i % NUM_COLOURS}"><i></i>{text(label)}</span>' for i, label in enumerate(labels))
    return f'<div class="legend">{inner}</div>'


def bar(parts: Sequence[tuple[str, float]]) -> str:
    """Return one bar divided by shares of a whole, with the names below."""
    total = sum(value for _, value in parts)
    if not total > 0.0:
        return ""
    pieces = "".join(
        f'<span class="c{index % NUM_COLOURS}" style="width:{100.0 * value / total:.2f}%"></span>'
        for index, (_, value) in enumerate(parts)
    )
    return f'<div class="bar">{pieces}</div>' + legend(
        [f"{name} {100.0 * value / total:.0f} %" for name, value in parts]
    )


def media(path: Path) -> str:
    """Return a video or a picture inside the page; one that is too large or no such file is named instead."""
    kind = _MEDIA.get(path.suffix)
    if kind is None:
        return ""
    try:
        content = read_bytes(path, max_bytes=MEDIA_BYTES)
    except (FileRefused, OSError) as error:
        return paragraph(f"{path.name} is not shown here: {error}", "note")
    magic, offset = _MAGIC[path.suffix]
    if content[offset : offset + len(magic)] != magic:
        return paragraph(f"{path.name} is not shown here: it is not a {path.suffix} file", "note")
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    if path.suffix == ".mp4":
        shown = f'<video controls loop muted src="{source}"></video>'
    else:
        shown = f'<img alt="{text(path.name)}" src="{source}">'
    return f"<figure>{shown}<figcaption>{text(path.name)}</figcaption></figure>"


# -- charts ------------------------------------------------------------------------------------------------------------


def chart(title: str, unit: str, lines: Sequence[ChartLine], *, x_unit: str = "env steps") -> str:
    """Return a line chart; nothing where no line has a finite point."""
    drawn = [_thinned(line) for line in lines]
    drawn = [line for line in drawn if len(line.x)]
    if not drawn:
        return ""
    frame = _Frame(drawn)
    inner = [*frame.grid(), *(_marks(frame, line) for line in drawn), *_hover(frame, drawn)]
    label = f'<text class="unit" x="{_LEFT}" y="{_HEIGHT - 4}">{text(x_unit)}</text>'
    return (
        f"<figure><figcaption><b>{text(title)}</b> <small>{text(unit)}</small></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(title)}">{"".join(inner)}{label}</svg>'
        "</figure>"
    )


def strips(
    title: str, names: Sequence[str], on: np.ndarray[Any, np.dtype[np.bool_]], seconds: float, note: str = ""
) -> str:
    """Return one row of bars per name, drawn while it is on; on: [T, names]. A gait as feet on the ground."""
    rows, steps = 22, len(on)
    height = rows * len(names) + 24
    room = _WIDTH - _LEFT - _RIGHT
    found = []
    for row, name in enumerate(names):
        found.append(f'<text x="{_LEFT - 6}" y="{row * rows + 16}" text-anchor="end">{text(name)}</text>')
        edges = np.flatnonzero(np.diff(np.concatenate([[False], on[:, row], [False]]).astype(np.int8)))
        for start, end in zip(edges[::2], edges[1::2]):
            left, width = _LEFT + room * start / steps, room * (end - start) / steps
            found.append(
                f'<rect class="band c{row % NUM_COLOURS}" x="{left:.1f}" y="{row * rows + 4}" width="{width:.1f}" '
                f'height="{rows - 6}"/>'
            )
    for share in (0.0, 0.5, 1.0):
        anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[share]
        shown = f"{share * seconds:.3g} s" if seconds else f"{share * steps:.0f}"
        found.append(f'<text x="{_LEFT + room * share}" y="{height - 6}" text-anchor="{anchor}">{shown}</text>')
    return (
        f"<figure><figcaption><b>{text(title)}</b> <small>{text(note)}</small></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{text(title)}">{"".join(found)}</svg></figure>'
    )


class _Frame:
    """The scales of a chart: from numbers to places in the picture."""

    def __init__(self, lines: Sequence[ChartLine]) -> None:
        x = np.concatenate([line.x for line in lines])
        # by the curves, not by their intervals: a wide interval must not flatten the curves
        y = np.concatenate([np.concatenate([line.y, *(thin for _, thin in line.behind)]) for line in lines])
        self.left, self.right = float(x.min()), float(x.max())
        if all(len(line.x) == 1 and not line.behind for line in lines):  # no curve: the intervals are all there is
            y = np.concatenate([y, *(line.y + _BOTH * line.half_width for line in lines if len(line.half_width))])
        low, high = float(y.min()), float(y.max())
        room = 0.06 * (high - low) or max(1e-9, 0.05 * abs(high)) or 1.0
        self.low, self.high = low - room, high + room

    def x(self, value: float) -> float:
        width = _WIDTH - _LEFT - _RIGHT
        return _LEFT + width * ((value - self.left) / (self.right - self.left) if self.right > self.left else 0.5)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    def path(self, x: Numbers, y: Numbers) -> str:
        return "M" + "L".join(f"{self.x(float(a)):.1f} {self.y(float(b)):.1f}" for a, b in zip(x, y))

    def grid(self) -> list[str]:
        found = []
        for value in ticks(self.low, self.high, 5):
            place = self.y(value)
            found.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
            found.append(f'<text x="{_LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{engineering(value)}</text>')
        below = _HEIGHT - _BOTTOM + 16
        return found + [
            f'<text x="{self.x(value):.1f}" y="{below}" text-anchor="middle">{engineering(value)}</text>'
            for value in ticks(self.left, self.right, 5)
        ]


def _thinned(line: ChartLine) -> ChartLine:
    """Return the finite points of a line, at most 300 of them: the eye sees no more, and the page stays small."""
    good = np.isfinite(line.x) & np.isfinite(line.y)
    half = line.half_width if len(line.half_width) == len(line.x) else np.zeros(0)
    x, y, half = line.x[good], line.y[good], half[good] if len(half) else half
    if len(x) > _MOST_POINTS:
        kept = np.unique(np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(int))
        x, y, half = x[kept], y[kept], half[kept] if len(half) else half
    behind = tuple(_few(a, b) for a, b in line.behind)
    return ChartLine(label=line.label, x=x, y=y, half_width=half, behind=behind, colour=line.colour)


def _few(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    good = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    kept = good[np.unique(np.linspace(0, len(good) - 1, min(len(good), _MOST_POINTS)).round().astype(int))]
    return x[kept], y[kept]


def _marks(frame: _Frame, line: ChartLine) -> str:
    kind = f"c{line.colour % NUM_COLOURS}"
    found = []
    if len(line.half_width) and line.half_width.any():
        above, below = line.y + line.half_width, line.y - line.half_width
        around = frame.path(np.concatenate([line.x, line.x[::-1]]), np.concatenate([above, below[::-1]]))
        found.append(f'<path class="band {kind}" d="{around}Z"/>')
    found += [f'<path class="thin {kind}" d="{frame.path(x, y)}"/>' for x, y in line.behind if len(x) > 1]
    if len(line.x) == 1:
        if len(line.half_width):
            found.append(
                f'<path class="line {kind}" d="{frame.path(line.x.repeat(2), line.y + _BOTH * line.half_width)}"/>'
            )
        found.append(
            f'<circle class="dot {kind}" cx="{frame.x(line.x[0]):.1f}" cy="{frame.y(line.y[0]):.1f}" r="3.5"/>'
        )
    else:
        found.append(f'<path class="line {kind}" d="{frame.path(line.x, line.y)}"/>')
    return "".join(found)


def _hover(frame: _Frame, lines: Sequence[ChartLine]) -> list[str]:
    """Return strips over the whole chart; the one under the pointer shows its step and values."""
    points = np.unique(np.concatenate([line.x for line in lines]))
    points = points[np.unique(np.linspace(0, len(points) - 1, min(len(points), _HOVER)).round().astype(int))]
    places = [frame.x(float(point)) for point in points]
    edges = [_LEFT, *((a + b) / 2 for a, b in pairwise(places)), _WIDTH - _RIGHT]
    found = []
    for point, place, start, end in zip(points, places, edges, edges[1:]):
        values = [
            short_number(float(np.interp(point, line.x, line.y))) if line.x[0] <= point <= line.x[-1] else "–"
            for line in lines[:NUM_COLOURS]
        ]
        spans = "".join(
            f'<tspan class="c{line.colour % NUM_COLOURS}"> {value}</tspan>' for line, value in zip(lines, values)
        )
        found.append(
            f'<g class="hover"><rect x="{start:.1f}" y="0" width="{max(0.5, end - start):.1f}" height="{_HEIGHT}"/>'
            f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
            f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{engineering(float(point))}:{spans}'
            "</text></g>"
        )
    return found


def ticks(low: float, high: float, number: int) -> list[float]:
    """Return round numbers between two bounds, about so many: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / number
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [value * step for value in range(first, math.floor(high / step + 1e-9) + 1)]


def engineering(value: float) -> str:
    """Return a number for an axis: 0, 0.25, 30k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}" if value else "0"


_STYLE = """
:root{color-scheme:light dark;--back:#fff;--card:#f6f7f9;--ink:#1b1f24;--soft:#5f6872;--rule:#dfe3e8;
--c0:#0072b2;--c1:#d55e00;--c2:#00865f;--c3:#b65a93;--c4:#b57b00;--c5:#2b8fc7;--c6:#444c56}
@media (prefers-color-scheme:dark){:root{--back:#14171b;--card:#1d2127;--ink:#e8eaed;--soft:#9aa4af;--rule:#343b44;
--c0:#58b0ee;--c1:#ff8c42;--c2:#34c99a;--c3:#e18fc4;--c4:#f0bf4c;--c5:#8ccdf5;--c6:#c9d1d9}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:18px;margin:0 0 12px}
section{margin-top:34px}p{margin:6px 0;max-width:80ch;overflow-wrap:anywhere}
.note,small,summary,figcaption{color:var(--soft)}.bad{color:var(--c1)}.good{color:var(--c2)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin-top:16px}
.tiles div{background:var(--card);border-radius:10px;padding:12px 14px}
.tiles b{display:block;font-size:20px;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.tiles span{color:var(--soft);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(330px,100%),1fr));gap:14px}
figure{margin:0;background:var(--card);border-radius:10px;padding:12px 12px 6px;min-width:0}
figcaption{font-size:13px;overflow-wrap:anywhere}figcaption b{color:var(--ink)}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:13px}
video,img{display:block;max-width:100%;margin:0 auto;border-radius:6px}
.media{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(280px,100%),520px));gap:14px}
.grid{stroke:var(--rule);stroke-width:1}.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
.thin{fill:none;stroke:currentColor;stroke-width:.8;opacity:.35}.band{fill:currentColor;opacity:.18}
.dot{fill:currentColor}
rect.band{opacity:.75}
.hover rect{fill:transparent}.hover line,.hover text{visibility:hidden}.hover line{stroke:var(--soft);stroke-width:1}
.hover:hover line,.hover:hover text{visibility:visible}.hover text{font-weight:600}.hover tspan{fill:currentColor}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}
.c6{color:var(--c6)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 0 14px;font-size:13px}.legend span{color:var(--ink)}
.legend i{display:inline-block;width:14px;height:4px;border-radius:2px;margin:0 7px 3px 0}
.legend .c0 i{background:var(--c0)}.legend .c1 i{background:var(--c1)}.legend .c2 i{background:var(--c2)}
.legend .c3 i{background:var(--c3)}.legend .c4 i{background:var(--c4)}.legend .c5 i{background:var(--c5)}
.legend .c6 i{background:var(--c6)}
.bar{display:flex;height:18px;border-radius:6px;overflow:hidden;margin-top:10px}.bar span{background:currentColor}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13.5px;margin:8px 0;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 16px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top;max-width:60ch;
overflow-wrap:anywhere}td:first-child{overflow-wrap:normal}th{color:var(--soft);font-weight:500}
.number{text-align:right}
pre{background:var(--card);border-radius:8px;padding:12px 14px;overflow-x:auto;font-size:13px;white-space:pre-wrap;
overflow-wrap:anywhere}
details{margin:10px 0}summary{cursor:pointer}nav{display:flex;flex-wrap:wrap;gap:4px 16px;
margin-top:14px;font-size:14px;overflow-wrap:anywhere}
a{color:var(--c0)}
"""
