#!/usr/bin/env python3
"""Draws a Grafana dashboard as SVG, without Grafana: every panel in its place, with what Prometheus
answers to the panel's own queries. Knows the kinds of panels that monitoring/grafana.json has:
rows, single values and lines over time.

    dashboard-picture.py DASHBOARD PROMETHEUS BEGIN END      the two times in Unix seconds
"""

import json
import math
import re
import sys
import urllib.parse
import urllib.request
from html import escape

from monitoring import expression, read_dashboard

# In pixels: one of Grafana's 24 columns, one of its rows, the gap between two panels.
COLUMN, LINE, GAP = 46, 27, 6

# How many points a line has.
POINTS = 90

# Scraped every two seconds, a rate wants some of these.
RATE_INTERVAL = "16s"

# Colours that can be told apart without red and green, too.
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d1f", "#56b4e9", "#4d4d4d", "#e69f00"]
STATE_COLOURS = {"green": "#1b7f4b", "orange": "#b35c00", "red": "#b3261e"}
TEXT, FAINT, GRID, FRAME = "#1f2328", "#59636e", "#e6e8eb", "#d1d5da"

# So wide is a character, in parts of the font's size.
CHARACTER = 0.54


def ask(server, path, **parameters):
    url = f"{server}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)["data"]["result"]


def legend(target, labels):
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target["legendFormat"])
    return text.strip()


def number(value):
    """With as many digits as one can use."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds):
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def size(value):
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= bytes_:
            return f"{value / bytes_:.3g} {unit}"
    return f"{value:.3g} B"


UNITS = {
    "short": number,
    "s": duration,
    "bytes": size,
    "ops": lambda value: number(value) + "/s",
    "percentunit": lambda value: f"{value * 100:.3g} %",
}


# What a round value is a multiple of.
BASES = {"bytes": [1, 2**10, 2**20, 2**30], "s": [1, 60, 3600, 86400]}


def steps_to(highest, unit):
    """Round values from 0 to just above the highest."""
    if highest <= 0:
        return [0, 1]
    base = max(base for base in BASES.get(unit, [1]) if base == 1 or base <= highest)
    rough = highest / base / 3
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough) * base
    return [step * n for n in range(math.ceil(highest / step) + 1)]


class Picture:
    def __init__(self, width, height):
        self.width, self.height, self.parts = width, height, []

    def rectangle(self, x, y, width, height, fill="#ffffff", stroke=FRAME):
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" '
            f'fill="{fill}" stroke="{stroke}"/>'
        )

    def text(self, x, y, text, font=12, colour=TEXT, anchor="start", weight="normal"):
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{font}" fill="{colour}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(text)}</text>'
        )

    def line(self, points, colour, width=1.5):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
            'stroke-linejoin="round"/>'
        )

    def area(self, points, colour):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polygon points="{path}" fill="{colour}" fill-opacity="0.25"/>')

    def svg(self, title):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" font-family="sans-serif" role="img">'
            f"<title>{escape(title)}</title>"
            f'<rect width="100%" height="100%" fill="#f6f8fa"/>'
        )
        return "\n".join([head, *self.parts, "</svg>"])


class Recording:
    """What Prometheus has seen between two times."""

    def __init__(self, server, begin, end):
        self.server, self.begin, self.end = server, begin, end

    def over_time(self, target):
        step = max(1, round((self.end - self.begin) / POINTS))
        for series in ask(
            self.server,
            "query_range",
            query=expression(target, RATE_INTERVAL),
            start=self.begin,
            end=self.end,
            step=step,
        ):
            values = {float(time): float(value) for time, value in series["values"]}
            yield legend(target, series["metric"]), values, step

    def at_the_end(self, target):
        query = expression(target, RATE_INTERVAL)
        for series in ask(self.server, "query", query=query, time=self.end):
            yield legend(target, series["metric"]), float(series["value"][1])


def draw_single_values(picture, recording, panel, box):
    x, y, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    values = [shown for target in panel["targets"] for shown in recording.at_the_end(target)]
    names = panel["options"]["textMode"] == "name"
    colour = TEXT
    if not values:
        texts = [defaults["noValue"]]
    elif names:
        texts = [name for name, _ in values]
    else:
        texts = [UNITS[defaults["unit"]](value) for _, value in values]
        if panel["options"]["colorMode"] == "background":
            for step in defaults["thresholds"]["steps"]:
                if step["value"] is None or values[0][1] >= step["value"]:
                    colour = STATE_COLOURS[step["color"]]
    if colour != TEXT:
        picture.rectangle(x, y, width, height, colour, colour)
    on_colour = "#ffffff" if colour != TEXT else TEXT
    picture.text(x + 10, y + 19, panel["title"], 12, on_colour)
    for place, text in enumerate(texts):
        centre = x + width * (2 * place + 1) / (2 * len(texts))
        font = min(26, round(width / len(texts) / (len(text) * CHARACTER * 1.2)))
        picture.text(centre, y + height / 2 + 18, text, font, on_colour, "middle", "bold")
        if len(texts) > 1:
            picture.text(centre, y + height - 9, values[place][0], 10, FAINT, "middle")


def stacked(series):
    """Each line on top of those before it."""
    base = {}
    for name, values, step in series:
        base = {time: base.get(time, 0) + value for time, value in values.items()}
        yield name, dict(base), step


def draw_lines(picture, recording, panel, box):
    x, y, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    series = [line for target in panel["targets"] for line in recording.over_time(target)]
    is_stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    if is_stacked:
        series = list(stacked(series))
    picture.text(x + 10, y + 19, panel["title"], 13, TEXT, weight="bold")
    if not series:
        picture.text(x + width / 2, y + height / 2, "no data", 12, FAINT, "middle")
        return
    left, right, top = x + 58, x + width - 12, y + 32
    rows = legend_rows([name for name, _, _ in series], width - 24)
    bottom = y + height - 24 - 15 * len(rows)
    scale = steps_to(max(max(values.values()) for _, values, _ in series), unit)
    across = (right - left) / (recording.end - recording.begin)
    up = (bottom - top) / scale[-1]

    def place(time, value):
        return left + (time - recording.begin) * across, bottom - value * up

    for value in scale:
        picture.line([(left, bottom - value * up), (right, bottom - value * up)], GRID, 1)
        picture.text(left - 6, bottom - value * up + 4, UNITS[unit](value), 10, FAINT, "end")
    for seconds in range(0, int(recording.end - recording.begin) + 1, 30):
        label = f"{seconds // 60}:{seconds % 60:02}"
        picture.text(left + seconds * across, bottom + 14, label, 10, FAINT, "middle")
    for index, (_, values, step) in reversed(list(enumerate(series))):
        colour = PALETTE[index % len(PALETTE)]
        for run in runs(values, step):
            points = [place(time, value) for time, value in run]
            if is_stacked:
                picture.area([(points[0][0], bottom), *points, (points[-1][0], bottom)], colour)
            picture.line(points, colour)
    index = 0
    for row, names in enumerate(rows):
        cursor = x + 12
        for name in names:
            base, colour = bottom + 31 + 15 * row, PALETTE[index % len(PALETTE)]
            picture.line([(cursor, base - 4), (cursor + 12, base - 4)], colour, 3)
            picture.text(cursor + 16, base, name, 11)
            cursor += legend_width(name)
            index += 1


def runs(values, step):
    """The parts of a line that have no gap; one point alone becomes a short line."""
    run = []
    for time in sorted(values):
        if run and time - run[-1][0] > 1.5 * step:
            yield run if len(run) > 1 else [*run, (run[0][0] + step / 2, run[0][1])]
            run = []
        run.append((time, values[time]))
    yield run if len(run) > 1 else [*run, (run[0][0] + step / 2, run[0][1])]


def legend_width(name):
    return 28 + len(name) * 11 * CHARACTER


def legend_rows(names, width):
    rows, used = [[]], 0
    for name in names:
        if rows[-1] and used + legend_width(name) > width:
            rows.append([])
            used = 0
        rows[-1].append(name)
        used += legend_width(name)
    return rows


def main():
    path, server, begin, end = sys.argv[1:]
    dashboard = read_dashboard(path)
    recording = Recording(server, float(begin), float(end))
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    picture = Picture(24 * COLUMN + GAP, height * LINE + GAP)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        x, y = place["x"] * COLUMN + GAP, place["y"] * LINE + GAP
        width, height = place["w"] * COLUMN - GAP, place["h"] * LINE - GAP
        if panel["type"] == "row":
            picture.text(x + 2, y + 16, panel["title"], 14, weight="bold")
            continue
        picture.rectangle(x, y, width, height)
        draw = {"stat": draw_single_values, "timeseries": draw_lines}[panel["type"]]
        draw(picture, recording, panel, (x, y, width, height))
    print(picture.svg(dashboard["title"]))


if __name__ == "__main__":
    main()
