"""Charts as SVG, made from numbers at the server: no script draws them."""

from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 120


def line(points, name, unit, low=0.0):
    """A line through (time, value) pairs; None is a gap.  The title says the largest and the newest value."""
    values = [v for _, v in points if v is not None]
    if not values:
        return None
    most = max(*values, low, 1e-9) if len(values) > 1 else max(values[0], low, 1e-9)
    step = WIDTH / max(len(points) - 1, 1)
    parts, run = [], []
    for n, (_, value) in enumerate([*points, (None, None)]):
        if value is None:
            if run:
                parts.append(run)
            run = []
        else:
            run.append((n * step, HEIGHT - 4 - (HEIGHT - 12) * value / most))
    shapes = []
    for run in parts:
        if len(run) == 1:
            shapes.append('<circle class="dot" cx="%.1f" cy="%.1f" r="2.5"/>' % run[0])
            continue
        path = " L".join("%.1f %.1f" % p for p in run)
        shapes.append('<path class="area" d="M%.1f %d L%s L%.1f %d Z"/>' % (run[0][0], HEIGHT, path, run[-1][0], HEIGHT))
        shapes.append('<path class="line" d="M%s"/>' % path)
    said = "%s: at most %s, now %s" % (name, unit(max(values)), unit(values[-1]))
    return Markup('<figure class="chart"><figcaption><span>%s</span> <b>%s</b></figcaption>'
                  '<svg viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s">%s</svg>'
                  '<div class="axis"><span>%s</span><span>%s</span></div></figure>'
                  % (escape(name), escape(unit(values[-1])), WIDTH, HEIGHT, escape(said), "".join(shapes),
                     *(Markup('<time datetime="%s" class="hm">%s</time>') % (t.isoformat(), t.strftime("%H:%M UTC"))
                       for t in (points[0][0], points[-1][0]))))


def lane(attempts, begin, end):
    """Attempts on a line of time: (start, seconds, kind), where kind is good, bad or next."""
    span = max((end - begin).total_seconds(), 0.001)
    marks = []
    for start, length, kind in attempts:
        x = 8 + (WIDTH - 16) * (start - begin).total_seconds() / span
        wide = max((WIDTH - 16) * length / span, 3)
        marks.append('<rect class="%s" x="%.1f" y="14" width="%.1f" height="20" rx="1.5"/>' % (kind, min(x, WIDTH - 8), wide))
    return Markup('<svg class="lane" viewBox="0 0 %d 48" preserveAspectRatio="none" aria-hidden="true">'
                  '<path class="base" d="M0 24 H%d"/>%s</svg>' % (WIDTH, WIDTH, "".join(marks)))
