"""A throw-away PostgreSQL cluster with default settings and the extension."""
import signal
import subprocess
import threading
import time

from machine import BenchError, alive, cpu_seconds, free_port, run, wait_until

# All that differs from what initdb writes.
SETTINGS = """
shared_preload_libraries = 'outbox'
outbox.allowed_networks = '127.0.0.0/8'
listen_addresses = ''
unix_socket_directories = '{dir}'
port = {port}
"""


class Psql:
    """A session: psql on two pipes.  Answers are lists of tuples of text."""

    END = "\x01end"

    def __init__(self, argv, user):
        more = {"user": user, "group": user, "extra_groups": []} if user else {}
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd="/", **more)
        self.lock = threading.Lock()
        self.rows("SET client_min_messages = error")

    def send(self, sql):
        self.process.stdin.write(f"{sql};\n\\echo {self.END}\n")
        self.process.stdin.flush()

    def receive(self):
        rows, error = [], []
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if line == self.END:
                if error:
                    raise BenchError("\n".join(error))
                return rows
            if error or line.startswith(("ERROR:", "FATAL:", "psql:")):
                error.append(line)
            rows.append(tuple(line.split("\x02")))
        raise BenchError("the server closed the connection: see its log (--keep)")

    def rows(self, sql):
        with self.lock:
            self.send(sql)
            return self.receive()

    def value(self, sql):
        rows = self.rows(sql)
        return rows[0][0] if rows else None

    def number(self, sql):
        return float(self.value(sql))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Cluster:
    """'more': lines for its configuration file.  'resolver': the address of a name server that the server's processes use
    instead of the machine's (root only: a mount namespace of its own).  'files': descriptors that its processes may have."""

    def __init__(self, machine, name, checksums=False, resolver=None, more="", files=None):
        self.machine = machine
        self.dir = machine.subdir(name)
        self.data = self.dir / "data"
        self.log = self.dir / "log"
        self.port = free_port()
        self.user = machine.user
        options = ["--data-checksums"] if checksums else []
        if not checksums and self.major() >= 18:
            options = ["--no-data-checksums"]
        self.command("initdb", "-D", self.data, "-U", "postgres", "-A", "trust",
                     "-E", "UTF8", "--no-locale", *options)
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(SETTINGS.format(dir=self.dir, port=self.port) + more)
        argv = [machine.bindir / "postgres", "-D", self.data]
        user = self.user
        if resolver:
            conf = self.dir / "resolv.conf"
            conf.write_text(f"nameserver {resolver}\n")
            conf.chmod(0o644)
            argv = ["unshare", "-m", "--propagation", "private", "sh", "-c",
                    'mount --bind "$1" /etc/resolv.conf && shift &&'
                    ' exec setpriv --reuid postgres --regid postgres --init-groups "$@"',
                    "sh", conf, *argv]
            user = None
        if files:
            argv = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *argv]
        self.argv, self.run_as = argv, user
        self.start()
        self.sql.rows("CREATE EXTENSION outbox")
        try:
            wait_until(self.running, 30, "outbox.status to say running")
        except BenchError as error:
            raise BenchError(f"{error}, it says"
                             f" {self.sql.rows('SELECT state, reason FROM outbox.status')}"
                             f" (log: {self.log}, --keep)")

    def start(self):
        self.process = self.machine.start(*self.argv, user=self.run_as, log=self.log)
        wait_until(self.ready, 30, f"the server to start (log: {self.log})")
        self.sql = self.session()

    def restart(self):
        self.stop()
        self.start()

    def major(self):
        return int(run(self.machine.bindir / "postgres", "-V").split()[2].split(".")[0]
                   .rstrip("devbtarc"))

    def command(self, program, *argv):
        more = {"user": self.user, "group": self.user, "extra_groups": []} if self.user else {}
        done = subprocess.run([str(self.machine.bindir / program), *map(str, argv)],
                              text=True, capture_output=True, cwd="/", **more)
        if done.returncode != 0:
            raise BenchError(f"{program} failed: {done.stderr.strip()}")
        return done.stdout

    def ready(self):
        if self.process.poll() is not None:
            raise BenchError(f"the server did not start: {self.log.read_text()[-2000:]}")
        return subprocess.run([str(self.machine.bindir / "pg_isready"), "-q", "-d",
                               self.conninfo()], cwd="/").returncode == 0

    def running(self):
        return self.sql.value("SELECT state FROM outbox.status") == "running"

    def conninfo(self):
        return f"host={self.dir} port={self.port} user=postgres dbname=postgres"

    def session(self):
        return Psql([str(self.machine.bindir / "psql"), "-XAtq", "-F", "\x02",
                     self.conninfo()], self.user)

    def stop(self):
        self.sql.close()
        self.machine.stop(self.process, signal.SIGINT)

    # What the sections do again and again.

    def worker(self):
        """The worker's pid."""
        pid = wait_until(lambda: self.sql.value(
            "SELECT pid FROM outbox.workers WHERE datname = current_database()"
            " AND pid IS NOT NULL"), 10, "a worker")
        return int(pid)

    def worker_cpu(self):
        return cpu_seconds(self.worker())

    def create_endpoint(self, name, url, more=""):
        self.sql.rows(f"SELECT outbox.create_endpoint('{name}', '{url}'{more})")

    def drop_endpoint(self, name):
        self.sql.rows(f"SELECT outbox.drop_endpoint('{name}', discard => true)")

    def pause(self, name):
        self.sql.rows(f"SELECT outbox.pause_endpoint('{name}')")

    def resume(self, name):
        self.sql.rows(f"SELECT outbox.resume_endpoint('{name}')")

    def emit(self, count, topic="bench.order", keys=0, per_transaction=10000, size=100, tenant=None):
        """Emits 'count' events, a number of them in each transaction."""
        key = f"'customer-' || i % {keys}" if keys else "NULL"
        for first in range(0, count, per_transaction):
            last = min(first + per_transaction, count)
            self.sql.rows(
                f"SELECT count(outbox.emit('{topic}', {payload('i', size)}, key => {key}{of_tenant(tenant)}))"
                f" FROM generate_series({first}, {last - 1}) AS i")

    def wait_delivered(self, name, count, timeout=600):
        """Waits until the worker has settled that many, nothing left over."""
        columns = "delivered, pending, processing, retrying, blocked, dead, state, last_error"
        until, moved, last = time.monotonic() + timeout, time.monotonic(), -1
        while True:
            row = self.sql.rows(f"SELECT {columns} FROM outbox.stats"
                                f" WHERE endpoint = '{name}'")[0]
            now = time.monotonic()
            if int(row[0]) >= count:
                break
            if int(row[0]) != last:
                last, moved = int(row[0]), now
            if now > until or now - moved > 60:
                raise BenchError(f"{name}: {count - last} of {count} are not delivered, and"
                                 f" nothing moves: ({columns}) = {row} (log: {self.log}, --keep)")
            time.sleep(0.05)
        if any(int(n or 0) for n in row[1:6]):
            raise BenchError(f"{name}: all was delivered, but ({columns}) = {row}")

    def drain(self, name, count, before=0):
        """Resumes a paused endpoint, waits until all is stored as delivered, drops it: how fast the
        worker was, its CPU and the WAL for each event.  The clock stops when the worker has the last
        outcome, as in the loops.  CPU and WAL are counted until the statistics say that all is stored,
        up to a tenth of a second later.
        'before': how many the endpoint had got when it was paused."""
        self.settle()
        pid = self.worker()
        cpu = cpu_seconds(pid)
        lsn = self.lsn()
        begun = time.time()
        self.resume(name)
        self.wait_delivered(name, before + count)
        ended = self.sql.number(f"SELECT extract(epoch FROM last_success_at) FROM outbox.stats WHERE endpoint = '{name}'")
        cpu = cpu_seconds(pid) - cpu
        wal = self.wal_bytes(lsn, self.lsn())
        self.drop_endpoint(name)
        return {"per_s": count / (ended - begun), "cpu_us": cpu * 1e6 / count, "wal": wal / count}

    def lsn(self):
        return self.sql.value("SELECT pg_current_wal_insert_lsn()")

    def wal_bytes(self, start, end):
        return int(self.sql.value(f"SELECT pg_wal_lsn_diff('{end}', '{start}')"))

    def settle(self, seconds=1.0):
        """Lets background work of the step before end."""
        time.sleep(seconds)

    def check(self):
        """Raises when the worker is not the one it should be any more."""
        restarts = int(self.sql.value("SELECT coalesce(sum(restarts), 0) FROM outbox.workers"))
        if restarts or not alive(self.worker()):
            raise BenchError(f"the worker was restarted {restarts} times:"
                             f" see {self.log} (--keep)")


def of_tenant(tenant):
    """SQL for an argument, if there is a tenant."""
    return f", tenant => '{tenant}'" if tenant else ""


def payload(number, size=100):
    """SQL for a JSON object whose text has 'size' bytes, for a number of up to
    seven digits; the padding goes by the digits."""
    frame = len('{"text": "", "order": 1234567}')
    return (f"jsonb_build_object('order', 1000000 + {number},"
            f" 'text', '{'x' * (size - frame)}')")
