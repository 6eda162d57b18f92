"""A copy of the tree and of PostgreSQL, to build something in that must not be
installed where people use it."""

import os
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PG_CONFIG = os.environ.get("PG_CONFIG") or "pg_config"

# What leaves nothing behind in the build, and what the tests need.
PARTS = ["src", "sinks", "sql", "inbox", "test", "Makefile", "outbox.control", "README.md",
         "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "META.json", "doc", "bench", "debian", "demo",
         "monitoring", "console", ".ci", ".github"]


def pg_config(option):
    return subprocess.run([PG_CONFIG, option], check=True, text=True,
                          capture_output=True).stdout.strip()


class Place:
    """A copy of the tree and of PostgreSQL to work in.  'commit': the tree is what that commit has."""

    def __init__(self, directory, commit=None):
        self.directory = directory
        self.tree = os.path.join(directory, "tree")
        self.tmp = os.path.join(directory, "tmp")
        for path in (self.tree, self.tmp):
            os.makedirs(path)
        os.chmod(self.tmp, 0o1777)
        if commit:
            archive = subprocess.run(["git", "archive", commit], cwd=TOP, check=True, stdout=subprocess.PIPE).stdout
            subprocess.run(["tar", "x"], cwd=self.tree, check=True, input=archive)
        else:
            self.copy_tree()
        self.pg_config = self.copy_postgres()

    def copy_tree(self):
        for part in PARTS:
            source = os.path.join(TOP, part)
            if os.path.isdir(source):
                shutil.copytree(source, os.path.join(self.tree, part), symlinks=True,
                                ignore=shutil.ignore_patterns("*.o", "*.bc"))
            elif os.path.exists(source):
                shutil.copy2(source, self.tree)

    def copy_postgres(self):
        """A PostgreSQL that looks for its files where the copy is."""
        bindir = pg_config("--bindir")
        dirs = [bindir, pg_config("--sharedir"), pg_config("--pkglibdir"), pg_config("--includedir-server")]
        include = pg_config("--includedir")
        prefix = os.path.commonpath(dirs + [include])

        def there(path):
            return os.path.join(self.directory, "pg", os.path.relpath(path, prefix))

        done = []
        for source in dirs:
            # Debian keeps bin and lib side by side, others one in the other.
            if not any(source.startswith(d + "/") for d in done):
                shutil.copytree(source, there(source), dirs_exist_ok=True)
                done.append(source)
        os.makedirs(there(include), exist_ok=True)
        for entry in os.scandir(include):
            if not os.path.lexists(there(entry.path)):
                os.symlink(entry.path, there(entry.path))
        copy = os.path.join(there(bindir), "pg_config")
        found = subprocess.run([copy, "--sharedir"], text=True,
                               capture_output=True).stdout.strip()
        if found != there(dirs[1]):
            sys.exit("this PostgreSQL cannot be moved: %s looks into %s" % (copy, found))
        return copy

    def environment(self, **env):
        return dict(os.environ, PG_CONFIG=self.pg_config, TMPDIR=self.tmp,
                    MAKEFLAGS="with_llvm=no", **env)

    def command(self, *command, limit=None, **env):
        """(status, output); -1: it did not come to an end."""
        try:
            done = subprocess.run(command, cwd=self.tree, env=self.environment(**env),
                                  text=True, errors="replace", stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                  timeout=limit)
            return done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            return -1, (late.stdout or b"").decode("utf-8", "replace")

    def build(self, *flags):
        return self.command("make", "-s", "-j2", "PG_CONFIG=" + self.pg_config, *flags)
