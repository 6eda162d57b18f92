"""Samples in, a table out: medians, percentiles, targets."""
import json
import statistics

median = statistics.median


def percentile(sorted_values, p):
    """The value below which p percent of the (sorted) values lie."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * p / 100))]


def text(value):
    """Three significant digits, thousands separated."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


# Above this share of the machine in foreign hands a section proves nothing.
TOLERATED = 0.03


class Report:
    def __init__(self, facts, command, quick):
        self.facts = facts
        self.command = command
        self.quick = quick
        self.rows = []
        self.disturbed = {}
        self.figures = {}		# what plot.py draws

    def disturbance(self, section, others, steal):
        """What others took of the machine while a section was measured."""
        self.disturbed[section] = {"others": others, "steal": steal,
                                   "too_much": others + steal > TOLERATED}
        if others + steal > TOLERATED:
            print(f"  DISTURBED: other processes took {others:.0%} of the machine, its host"
                  f" {steal:.0%}: its times and rates prove nothing", flush=True)

    def trusted(self, row):
        return row["counted"] or not self.disturbed.get(row["section"], {}).get("too_much")

    def add(self, section, what, measured, target="", met=None, counted=False, **data):
        """'met': True, False, or None where nothing was promised.  'counted': bytes,
        rows and the like, which a busy machine hardly changes."""
        row = {"section": section, "what": what, "measured": measured,
               "target": target, "met": met, "counted": counted, "data": data}
        self.rows.append(row)
        mark = {True: "met", False: "NOT MET", None: ""}[met]
        print(f"  {what}: {measured}   {target} {mark}".rstrip(), flush=True)

    def ratio(self, section, what, ours, theirs, unit="/s", at_least=None, **data):
        """Two lists of samples that were taken in turn."""
        value = median(ours) / median(theirs)
        each = sorted(a / b for a, b in zip(ours, theirs))
        spread = f" ({each[0]:.2f}–{each[-1]:.2f})" if len(each) > 1 else ""
        self.add(section, what,
                 f"{text(median(ours))}{unit} ÷ {text(median(theirs))}{unit}"
                 f" = **{value:.2f}**{spread}",
                 f"≥ {at_least}" if at_least else "",
                 value >= at_least if at_least else None,
                 ratio=value, ours=ours, theirs=theirs, **data)

    def at_most(self, section, what, samples, unit, limit=None, **data):
        value = median(samples)
        self.add(section, what, f"**{text(value)}** {unit}",
                 f"≤ {limit:,} {unit}" if limit is not None else "",
                 value <= limit if limit is not None else None, counted=True,
                 value=value, samples=samples, **data)

    def markdown(self):
        f = self.facts
        lines = [
            f"`{self.command}`, {f['date']}: {f['cores']} cores of {f['cpu']},"
            f" {f['memory_gb']} GB, Linux {f['kernel']}, {f['postgresql']} with default"
            f" settings (fsync on), outbox build {f['library']}, {f['libcurl']}, {f['nginx']} as receiver (one worker"
            " process). Payloads of 100 bytes, signatures and attempts log on. "
            + ("Quick mode: one run each, small counts, not to be quoted."
               if self.quick else "Medians of 5 interleaved runs, in brackets the range."
               )
            + f" Load average before: {f['load_before']:.1f}.",
            "",
            "| | measured | promised | |",
            "|---|---|---|---|",
        ]
        section = None
        for row in self.rows:
            if row["section"] != section:
                section = row["section"]
                taken = self.disturbed.get(section)
                note = ""
                if taken and taken["too_much"]:
                    note = (f"disturbed: {taken['others'] + taken['steal']:.0%} of the machine"
                            " was taken by others: times and rates prove nothing")
                lines.append(f"| **{section}** | {note} | | |")
            mark = {True: "✓", False: "✗", None: ""}[row["met"]]
            if mark and not self.trusted(row):
                mark = "?"
            lines.append(f"| {row['what']} | {row['measured']} | {row['target']} | {mark} |")
        return "\n".join(lines) + "\n"

    def save(self, path):
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"command": self.command, "quick": self.quick,
                       "facts": self.facts, "disturbed": self.disturbed,
                       "rows": self.rows, "figures": self.figures}, out, indent=1)
            out.write("\n")
