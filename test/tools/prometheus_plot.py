#!/usr/bin/env python3
"""Draws doc/prometheus.svg from what Prometheus recorded in metrics/prometheus_scrapes.pl.

    OUTBOX_TEST_PICTURE=/tmp/range.json OUTBOX_TEST_CLIENTS=1 TESTS=metrics/prometheus_scrapes test/bin/run tap
    test/tools/prometheus_plot.py /tmp/range.json doc/prometheus.svg"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

import plot  # noqa: E402

ROW, TOP, STEP = 130, 60, 190
PURPLE = "#a855f7"


def series(data, name, **labels):
    """{time: value}, summed over all that match."""
    found = {}
    for one in data:
        metric = one["metric"]
        if metric["__name__"] == name and all(metric.get(k) in v for k, v in labels.items()):
            for at, value in one["values"]:
                found[at] = found.get(at, 0) + float(value)
    return found


def curve(points, begin, end, place, colour):
    wide = plot.WIDTH - plot.LEFT - plot.RIGHT
    path = " ".join(f"{plot.LEFT + wide * (at - begin) / (end - begin):.1f},{place(value):.1f}"
                    for at, value in sorted(points.items()))
    return f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>'


def main():
    data = json.load(open(sys.argv[1]))["data"]["result"]
    rates = [("emitted", series(data, "outbox:emitted:rate5m", job={"outbox"}), plot.GREY),
             ("delivered", series(data, "outbox:delivered:rate5m", job={"outbox"}), plot.BLUE),
             ("failed", series(data, "outbox:failed_attempts:rate5m", job={"outbox"}), plot.ORANGE)]
    waits = {"pending", "retrying", "blocked"}
    waiting = [(name, series(data, "outbox_endpoint_deliveries", job={"outbox"}, endpoint={name}, status=waits), colour)
               for name, colour in (("down", plot.ORANGE), ("slow", PURPLE), ("good", plot.BLUE))]
    times = [at for _, points, _ in rates + waiting for at in points]
    fired = [at for one in data if one["metric"]["__name__"] == "ALERTS"
             and one["metric"]["alertstate"] == "firing" and one["metric"]["alertname"] != "OutboxUnmatched"
             for at, _ in one["values"]]
    begin, end = min(times), max(fired) + 10
    for _, points, _ in rates + waiting:
        for at in [at for at in points if at > end]:
            del points[at]
    parts = []
    for row, (unit, lines) in enumerate((("per second, over five seconds", rates), ("deliveries that wait", waiting))):
        y = TOP + row * STEP
        top = max(value for _, points, _ in lines for value in points.values())
        place, axis = plot.axis(top, y, ROW, unit)
        parts += axis + plot.legend(y - 8, *[(name, colour) for name, _, colour in lines])
        parts += [curve(points, begin, end, place, colour) for _, points, colour in lines]
    y = TOP + 2 * STEP
    parts.append(plot.label(plot.LEFT, y - 8, "alerts that fire"))
    wide = plot.WIDTH - plot.LEFT - plot.RIGHT
    alerts = sorted({one["metric"]["alertname"] for one in data
                     if one["metric"]["__name__"] == "ALERTS" and one["metric"]["alertstate"] == "firing"
                     and any(at <= end for at, _ in one["values"])} - {"OutboxUnmatched"})
    for i, alert in enumerate(alerts):
        at = series(data, "ALERTS", alertname={alert}, alertstate={"firing"})
        for second in [second for second in at if second <= end]:
            x = plot.LEFT + wide * (second - begin) / (end - begin)
            parts.append(f'<rect x="{x:.1f}" y="{y + i * 20}" width="{wide / (end - begin) + 0.5:.1f}" height="14"'
                         f' fill="{plot.ORANGE}" opacity="0.8"/>')
        parts.append(plot.label(plot.WIDTH - plot.RIGHT, y + i * 20 + 12, alert, "end"))
    height = y + len(alerts) * 20 + 40
    pathlib.Path(sys.argv[2]).write_text(plot.picture(
        height, "A receiver goes down, another gets slow, and both come back",
        f"{end - begin:.0f} seconds, as Prometheus recorded them", parts))


main()
