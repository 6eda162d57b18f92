"""Deliveries per second over TLS: with the version of HTTP that the worker chooses beside those
that one may ask for, and beside a bare libcurl loop."""
import itertools
import json
import subprocess

from drain import capture
from machine import HERE, BenchError
from receivers import Nginx
from report import median, text

SECTION = "TLS"
LOOPS = ((32, "1.1"), (128, "1.1"), (32, "2"), (128, "2"))	# in flight, version of HTTP
IN_FLIGHT = (32, 1000)			# max_in_flight of the endpoint
VERSIONS = ("auto", "1.1", "2")	# its http_version


def loop(nginx, request, count, in_flight, version):
    """The yardstick, once, or None where it ends with an error: libcurl 7.88 takes an answer
    over HTTP/2 that comes before the whole body was read for one."""
    done = subprocess.run(
        [str(a) for a in (HERE / "loop", "-r", request, "-n", count, "-c", in_flight,
                          "-C", nginx.certificate, *(["-2"] if version == "2" else []), nginx.url())],
        capture_output=True, text=True)
    if version == "2" and done.returncode != 0:
        return None
    if done.returncode != 0:
        raise BenchError(f"the libcurl loop failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def drain(cluster, nginx, count, in_flight, version):
    cluster.create_endpoint("tls", nginx.url(), f", max_in_flight => {in_flight},"
                            f""" config => '{{"http_version": "{version}"}}'""")
    cluster.pause("tls")
    cluster.emit(count)
    return cluster.drain("tls", count)


def measure(bench):
    report = bench.report
    count = bench.scale(200000, 100000)
    nginx = Nginx(bench.machine, tls=True)
    cluster = bench.cluster("tls", more=f"outbox.ssl_ca_file = '{nginx.certificate}'\n")
    request = capture(bench, cluster, 0)
    bare = {variant: [] for variant in LOOPS}
    ours = {variant: [] for variant in itertools.product(IN_FLIGHT, VERSIONS)}
    for _ in range(bench.repetitions):
        for variant in LOOPS:
            bare[variant].append(loop(nginx, request, count, *variant))
        for variant in ours:
            ours[variant].append(drain(cluster, nginx, count, *variant))
    cluster.check()
    cluster.stop()
    bench.machine.stop(nginx.process)

    rates = {}
    for (in_flight, version), runs in bare.items():
        what = f"bare libcurl loop, HTTP/{version}, {in_flight} in flight"
        if None in runs:
            report.add(SECTION, what, f"fails in {runs.count(None)} of {len(runs)} runs")
            continue
        rates[in_flight, version] = [r["per_s"] for r in runs]
        report.add(SECTION, what, f"{text(median(rates[in_flight, version]))}/s,"
                   f" {text(median(r['cpu_us'] for r in runs))} µs of CPU", libcurl=runs[0]["curl"])
    best = max(rates, key=lambda variant: median(rates[variant]))
    rates = {variant: [r["per_s"] for r in runs] for variant, runs in ours.items()} | {"loop": rates[best]}
    for in_flight in IN_FLIGHT:
        better = max(((in_flight, version) for version in VERSIONS[1:]), key=lambda v: median(rates[v]))
        chosen = in_flight, "auto"
        what = f"{count:,} events waiting, max_in_flight {in_flight}: deliveries/s with http_version"
        report.ratio(SECTION, f"{what} auto ÷ the better of 1.1 and 2 ({better[1]})",
                     rates[chosen], rates[better], at_least=0.9, runs=ours[chosen], better=ours[better])
        report.ratio(SECTION, f"{what} auto ÷ the best of these loops (HTTP/{best[1]}, {best[0]})",
                     rates[chosen], rates["loop"])
        for version in VERSIONS:
            runs = ours[in_flight, version]
            report.add(SECTION, f"max_in_flight {in_flight}, http_version {version}",
                       f"{text(median(r['per_s'] for r in runs))}/s,"
                       f" {text(median(r['cpu_us'] for r in runs))} µs of CPU", runs=runs)
