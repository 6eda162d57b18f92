#!/usr/bin/env python3
"""Draws the plots of doc/performance.md, as SVG, from bench/figures.json.

    bench/plot.py                 # doc/*.svg anew
    bench/plot.py --into DIR      # elsewhere
    bench/plot.py --publish       # first takes the figures of bench/results.json over

The colours are readable on white and on black."""
import argparse
import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
FIGURES = HERE / "figures.json"
RESULTS = HERE / "results.json"
DOC = HERE.parent / "doc"

BLUE, ORANGE, GREY = "#3b82f6", "#d97706", "#6e7781"
WIDTH, LEFT, RIGHT = 720, 70, 40


def middle(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def label(x, y, words, anchor="start", colour=GREY, bold=False):
    weight = ' font-weight="bold"' if bold else ""
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{words}</text>'


def rule(x1, y1, x2, y2, colour=GREY, width=1.0, opacity=1.0):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"'
            f' stroke-width="{width}" opacity="{opacity}"/>')


def picture(height, title, caption, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{title}</title>",
        label(LEFT, 20, title, bold=True), *parts,
        label(LEFT, height - 8, caption), "</svg>\n"])


def ticks(top):
    """Round values from 0 to 'top' or a little above, some five of them."""
    step = 10 ** math.floor(math.log10(top / 2))
    step *= next(s for s in (0.5, 1, 2, 5) if top / (step * s) <= 6)
    return [i * step for i in range(math.ceil(top / step) + 1)]


def number(value):
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:g}"


def axis(top, y, height, unit):
    """Lines across with their values; and where a value lies."""
    values = ticks(top)

    def place(value):
        return y + height - height * value / values[-1]

    parts = [label(LEFT, y - 8, unit)]
    for value in values:
        parts += [rule(LEFT, place(value), WIDTH - RIGHT, place(value), opacity=0.3),
                  label(LEFT - 8, place(value) + 4, number(value), "end")]
    return place, parts


def legend(y, *entries):
    parts, x = [], WIDTH - RIGHT - 130 * len(entries)
    for name, colour in entries:
        parts += [f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>',
                  label(x + 18, y, name)]
        x += 130
    return parts


def curve(points, colour):
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def throughput(rows, caption):
    """Bars: medians; the lines on them are the range of the runs."""
    top = max(max(row["outbox"] + row["loop"]) for row in rows)
    place, parts = axis(top, 60, 220, "requests a second")
    room = (WIDTH - LEFT - RIGHT) / len(rows)
    for i, row in enumerate(rows):
        centre = LEFT + room * (i + 0.5)
        for name, colour, x in (("outbox", BLUE, centre - 62), ("loop", ORANGE, centre + 2)):
            value, low, high = middle(row[name]), min(row[name]), max(row[name])
            parts.append(f'<rect x="{x:.1f}" y="{place(value):.1f}" width="60"'
                         f' height="{place(0) - place(value):.1f}" fill="{colour}"/>')
            if low < high:
                parts.append(rule(x + 30, place(low), x + 30, place(high), width=2))
            parts.append(label(x + 30, place(0) - 8, f"{value:,.0f}", "middle", "white"))
        parts.append(label(centre, 300, row["what"], "middle"))
    parts += legend(20, ("outbox", BLUE), ("bare libcurl loop", ORANGE))
    return picture(340, "200,000 waiting events, to one receiver", caption, parts)


def latency(rates, caption):
    """Percentiles.  Each of the wide steps to the right leaves a tenth of the events."""
    def across(percent):
        return LEFT + (WIDTH - LEFT - RIGHT) * -math.log10(1 - percent / 100) / 3

    place, parts = axis(max(ms for points in rates.values() for _, ms in points), 60, 220, "ms")
    for percent in (50, 90, 99, 99.9):
        parts += [rule(across(percent), 60, across(percent), 280, opacity=0.3),
                  label(across(percent), 298, f"{percent} %", "middle")]
    colours = dict(zip(sorted(rates, key=int), (BLUE, ORANGE)))
    for rate, colour in colours.items():
        parts += curve([(across(percent), place(ms)) for percent, ms in rates[rate]], colour)
    parts += legend(20, *((f"{int(rate):,} events/s", colour) for rate, colour in colours.items()))
    return picture(340, "From emit to receiver: at most this long", caption, parts)


def held(series, caption):
    """Over the minutes: what was delivered, and how long it took."""
    end = max(at for points in series.values() for at, _ in points)
    end = 60 * math.ceil(end / 60)
    parts, y = [], 60
    panels = [("deliveries a second", [("rate", BLUE)]),
              ("ms from emit to receiver", [("p50", BLUE), ("p99", ORANGE)])]
    for unit, names in panels:
        names = [(name, colour) for name, colour in names if series.get(name)]
        if not names:
            continue
        place, lines = axis(max(v for name, _ in names for _, v in series[name]), y, 120, unit)
        parts += lines
        for name, colour in names:
            parts += curve([(LEFT + (WIDTH - LEFT - RIGHT) * at / end, place(v))
                            for at, v in series[name]], colour)
        if len(names) > 1:
            parts += legend(y - 8, *names)
        y += 180
    for minute in range(end // 60 + 1):
        parts.append(label(LEFT + (WIDTH - LEFT - RIGHT) * minute * 60 / end, y - 42,
                           f"{minute} min", "middle"))
    return picture(y, "800 events/s while one snapshot is held", caption, parts)


PLOTS = {"throughput": ("drain", throughput), "latency": ("latency", latency),
         "held": ("history", held)}


def publish(path=RESULTS):
    """Takes the figures of the last run over, all of them or none."""
    results = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    missing = sorted(PLOTS[name][0] for name in set(PLOTS) - set(results["figures"]))
    if missing or results["quick"]:
        sys.exit("bench/plot.py: nothing is published: the run was "
                 + ("a quick one" if results["quick"] else f"without {', '.join(missing)}"))
    kept = ("date", "cores", "cpu", "postgresql", "libcurl", "nginx")
    FIGURES.write_text(json.dumps({
        "facts": {name: results["facts"][name] for name in kept},
        "figures": results["figures"]}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def draw(into=DOC):
    published = json.loads(FIGURES.read_text(encoding="utf-8"))
    facts = published["facts"]
    for name, (section, plot) in PLOTS.items():
        caption = (f"bench/run {section}, {facts['date']}, {facts['cores']} cores of {facts['cpu']},"
                   f" {facts['postgresql']}")
        (into / f"{name}.svg").write_text(plot(published["figures"][name], caption), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--publish", action="store_true",
                        help="take bench/results.json over into bench/figures.json first")
    parser.add_argument("--into", type=pathlib.Path, default=DOC, help="directory (default doc)")
    options = parser.parse_args()
    if options.publish:
        publish()
    draw(options.into)


if __name__ == "__main__":
    main()
