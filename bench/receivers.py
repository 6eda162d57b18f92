"""The receivers: nginx, which counts, and receiver.c, which knows when."""
import http.client
import pathlib
import re
import subprocess
import time

from machine import HERE, BenchError, free_port, run, wait_until

# An event is unlucky by its id: the share of ids that match is known, and SQL
# can count them.  13 of 256 are 5.08 %.
UNLUCKY = "^.{34}0[0-9a-c]$"

NGINX = """
daemon off;
worker_processes 1;
pid {dir}/nginx.pid;
error_log {dir}/nginx.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 19000; }}
http {{
	access_log off;
	keepalive_requests 1000000000;
	keepalive_timeout 1h;
	client_body_temp_path {dir}/body;
	proxy_temp_path {dir}/proxy;
	fastcgi_temp_path {dir}/fastcgi;
	uwsgi_temp_path {dir}/uwsgi;
	scgi_temp_path {dir}/scgi;
	map "$http_outbox_attempt$http_webhook_id" $unlucky {{
		default "";
		"~^1.{{34}}0[0-9a-c]$" 1;
	}}
	server {{
		listen {address}{port} backlog=4096;
		location / {{ return 204; }}
		location = /status {{ stub_status; }}
	}}
	server {{
		# With a text, or nginx closes the connection as well.
		listen 127.0.0.1:{unlucky} backlog=1024;
		location / {{
			if ($unlucky) {{ return 500 "unlucky"; }}
			return 204;
		}}
	}}
	{tls}
}}
"""

TLS = """
	server {{
		listen 127.0.0.1:{port} ssl http2 backlog=1024;
		ssl_certificate {certificate};
		ssl_certificate_key {key};
		location / {{ return 204; }}
	}}
"""


def answers(port):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", "/")
        connection.getresponse().read()
        return True
    except OSError:
        return False


class Nginx:
    """One worker process that answers 204 and logs nothing."""

    def __init__(self, machine, everywhere=False, tls=False):
        self.machine = machine
        directory = machine.dir / ("nginx-everywhere" if everywhere else f"nginx-tls-{free_port()}" if tls else "nginx")
        directory.mkdir()
        self.certificate = directory / "certificate.pem"
        self.tls = free_port() if tls else None
        if tls:
            run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                "-nodes", "-keyout", directory / "key.pem", "-out", self.certificate, "-days", "2",
                "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:*.w.localhost", stderr=subprocess.DEVNULL)
        self.port = free_port()
        self.unlucky = free_port()
        conf = directory / "nginx.conf"
        conf.write_text(NGINX.format(dir=directory, port=self.port,
                                     address="" if everywhere else "127.0.0.1:", unlucky=self.unlucky,
                                     tls=tls and TLS.format(port=self.tls, certificate=self.certificate,
                                                            key=directory / "key.pem") or ""))
        self.process = machine.start("nginx", "-p", directory, "-c", conf,
                                     log=directory / "out")
        wait_until(lambda: answers(self.port), 10, "nginx")
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        self.asked = 0

    def url(self, unlucky=False):
        if self.tls:
            return f"https://127.0.0.1:{self.tls}/"
        return f"http://127.0.0.1:{self.unlucky if unlucky else self.port}/"

    def requests(self):
        """Requests served so far, our own questions not counted."""
        self.connection.request("GET", "/status")
        text = self.connection.getresponse().read().decode()
        self.asked += 1
        return int(re.search(r"requests\s+\d+ \d+ (\d+)", text)[1]) - self.asked

    def wait_for(self, count, timeout, progress=None):
        """Waits for the request number 'count', returns when it was seen."""
        until = time.monotonic() + timeout
        last, moved = -1, time.monotonic()
        while True:
            done, now = self.requests(), time.monotonic()
            if progress is not None:
                progress.append((now, done))
            if done >= count:
                return now
            if done != last:
                last, moved = done, now
            if now > until or now - moved > 60:
                raise BenchError(f"{count - done} of the requests did not arrive: see"
                                 " the server's log (--keep)")
            time.sleep(0.02)


class Receiver:
    """receiver.c in one of its modes."""

    def __init__(self, machine, record=False, dump=False, silent=False, everywhere=False):
        self.machine = machine
        self.port = free_port()
        base = machine.dir / f"receiver-{self.port}"
        self.record = pathlib.Path(f"{base}.record")
        self.dump = pathlib.Path(f"{base}.dump")
        self.silent = silent
        arguments = ["-p", self.port]
        if record:
            arguments += ["-o", self.record]
        if dump:
            arguments += ["-d", self.dump]
        if silent:
            arguments += ["-n"]
        if everywhere:
            arguments += ["-a"]
        self.process = machine.start(HERE / "receiver", *arguments, log=f"{base}.log")
        if silent:
            time.sleep(0.2)
        elif not dump:
            wait_until(lambda: answers(self.port), 10, "the receiver")
        else:
            time.sleep(0.2)

    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def arrivals(self):
        """Stops it; the time of each number's first arrival, and how many
        arrived again."""
        self.machine.stop(self.process)
        first, again = {}, 0
        for line in self.record.read_text().splitlines():
            number, at = map(int, line.split())
            if number < 0:
                continue
            if number in first:
                again += 1
            else:
                first[number] = at
        return first, again

    def stop(self):
        self.machine.stop(self.process)
