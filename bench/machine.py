"""What the bench does to this machine: programs, ports, processes, their CPU
and memory.  Whatever is started here is stopped by its pid at the end."""
import ctypes
import hashlib
import os
import pathlib
import platform
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """Something that the reader can put right; the text says how."""


def run(*argv, **more):
    return subprocess.run([str(a) for a in argv], check=True, text=True,
                          stdout=subprocess.PIPE, **more).stdout


def wait_until(condition, timeout, what, every=0.05):
    until = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > until:
            raise BenchError(f"waited {timeout} s in vain for {what}")
        time.sleep(every)
    return value


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu_seconds(pid):
    """User and system time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cpu_ms(pid):
    """The same, exact to the nanosecond, in ms."""
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def rss_anon(pid):
    """Private memory of a process, in bytes (shared buffers are not in it)."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024


def alive(pid):
    return pathlib.Path(f"/proc/{pid}").exists()


def children(pid):
    """What a process has started, and what still runs of it."""
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def own_cpu():
    """User and system time of this process, of all that it started, and of
    what those started: the living, and the dead that were waited for."""
    parents, times = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue			# has ended meanwhile
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        times[pid] = sum(map(int, fields[11:15])) / TICKS

    def ours(pid):
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return sum(cpu for pid, cpu in times.items() if ours(pid))


class Loopback:
    """A network of our own while it is entered: only the loopback device, where a
    receiver may listen on all addresses at once.  What is started meanwhile stays
    in it.  Root only."""

    NEWNET = 0x40000000

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)

    def call(self, name, *arguments):
        if getattr(self.libc, name)(*arguments) != 0:
            raise BenchError(f"{name}: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        self.before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.call("unshare", self.NEWNET)
        run("ip", "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        self.call("setns", self.before, self.NEWNET)
        os.close(self.before)


class Disturbance:
    """What others took of the machine since this was made: other processes, and
    the host of a virtual machine (steal), as shares of all cores."""

    def __init__(self):
        self.begun, self.own, (self.busy, self.steal) = time.monotonic(), own_cpu(), self.read()

    @staticmethod
    def read():
        fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, system, steal = (int(fields[i]) / TICKS for i in (1, 2, 3, 8))
        return user + nice + system, steal

    def shares(self):
        busy, steal = self.read()
        all_cores = (time.monotonic() - self.begun) * os.cpu_count()
        others = busy - self.busy - (own_cpu() - self.own)
        return max(0, others / all_cores), max(0, (steal - self.steal) / all_cores)


class Machine:
    """A directory and the processes in it.  PostgreSQL does not run as root:
    then its processes are those of the user postgres.  'pg_config': of a PostgreSQL
    that has the extension already."""

    def __init__(self, pg_config=None):
        self.pg_config = pg_config or os.environ.get("PG_CONFIG", "pg_config")
        if not pg_config:
            self.install()
        self.user = None
        if os.geteuid() == 0:
            try:
                pwd.getpwnam("postgres")
            except KeyError:
                raise BenchError("root cannot run PostgreSQL and there is no user"
                                 " postgres: run bench/run as another user")
            self.user = "postgres"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="outbox-bench-"))
        os.chmod(self.dir, 0o755)
        self.processes = []
        self.bindir = pathlib.Path(run(self.pg_config, "--bindir").strip())
        for program in ("nginx", "cc", "make", "curl-config"):
            if not shutil.which(program, path=self.path()):
                raise BenchError(f"the bench needs {program} on the PATH (Debian:"
                                 " nginx-light, build-essential, libcurl4-openssl-dev,"
                                 " libpq-dev)")
        run("make", "-s", "-C", HERE, f"PG_CONFIG={self.pg_config}")

    def install(self):
        """What is measured is what lies beside this folder, not what was installed
        some time ago."""
        run(HERE.parent / "test" / "bin" / "setup", "bench")
        make = ["make", "-s", "--no-print-directory", "-C", HERE.parent,
                f"PG_CONFIG={self.pg_config}"]
        run(*make, "all")
        run(*([] if self.writable() else ["sudo"]), *make, "install")

    def writable(self):
        """Whether libraries can be installed without sudo."""
        return os.access(run(self.pg_config, "--pkglibdir").strip(), os.W_OK)

    @staticmethod
    def path():
        return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

    def subdir(self, name):
        """A new directory that the server's user may write."""
        path = self.dir / name
        path.mkdir()
        if self.user:
            shutil.chown(path, self.user)
        return path

    def start(self, *argv, user=None, log=None):
        out = open(log, "ab") if log else subprocess.DEVNULL
        more = {"user": user, "group": user, "extra_groups": []} if user else {}
        process = subprocess.Popen(
            [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out,
            stderr=out, cwd=self.dir, env={**os.environ, "PATH": self.path()}, **more)
        self.processes.append(process)
        return process

    def stop(self, process, sig=signal.SIGTERM, timeout=60):
        if process in self.processes:
            self.processes.remove(process)
        if process.poll() is None:
            process.send_signal(sig)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise BenchError(f"process {process.pid} did not stop within {timeout} s")

    def close(self, keep):
        for process in reversed(self.processes[:]):
            try:
                self.stop(process, signal.SIGINT)
            except BenchError as error:
                print(error)
        if keep:
            print(f"kept {self.dir}")
        else:
            shutil.rmtree(self.dir, ignore_errors=True)

    def library(self):
        """Which build of the extension is installed: the start of its hash."""
        path = pathlib.Path(run(self.pg_config, "--pkglibdir").strip()) / "outbox.so"
        script = pathlib.Path(run(self.pg_config, "--sharedir").strip()) / "extension"
        try:
            data = path.read_bytes()
            for sql in sorted(script.glob("outbox*")):
                data += sql.read_bytes()
        except OSError as error:
            raise BenchError(f"the extension is not installed ({error}): make install")
        return hashlib.sha256(data).hexdigest()[:12]

    def facts(self):
        cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
        model = re.search(r"model name\s*:\s*(.*)", cpuinfo)
        memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
        nginx = subprocess.run(["nginx", "-v"], text=True, capture_output=True,
                               env={**os.environ, "PATH": self.path()}).stderr
        return {
            "cpu": model[1] if model else platform.machine(),
            "cores": os.cpu_count(),
            "memory_gb": round(int(memory[1]) / 1048576),
            "kernel": platform.release(),
            "postgresql": run(self.pg_config, "--version").strip(),
            "library": self.library(),
            "libcurl": run("curl-config", "--version").strip(),
            "nginx": nginx.strip().rpartition(" ")[2],
            "load_before": os.getloadavg()[0],
            "date": time.strftime("%Y-%m-%d"),
        }
