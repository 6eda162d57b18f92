"""Connections to PostgreSQL: a small pool, limits of time, and errors in words.

A question never fails as a Python error: its Answer has rows, or says in words why it has none.
So no screen can show an empty table that means "I do not know".
"""

import asyncio
import contextlib
import datetime
import logging
import time

import psycopg
from psycopg.rows import dict_row

from . import VERSION

LOG = logging.getLogger("outbox-console")

# An error of a whole statement, by SQLSTATE, in words for the reader of a screen.
WORDS = {
    "42501": "The database role of the console may not see this. One that outbox.grant_to() lets operate may.",
    "57014": "This took longer than the console waits, and was ended. It says nothing about whether there are rows.",
    "55P03": "A table is locked at present, as by VACUUM FULL or REINDEX. It is looked at again.",
    "25006": "The server is a standby, or takes no changes at present. Nothing was changed.",
    "3F000": "This database has no extension outbox.",
}
# What the console asks for and the database does not have: of another version, or the console is wrong.
MISSING = {"42P01": "view", "42703": "column", "42883": "function"}


class Away(Exception):
    """The database cannot be asked, in words."""


class Answer:
    """The rows of a question, or the reason why there are none."""

    def __init__(self, rows=(), problem=None):
        self.rows, self.problem, self.at, self.counting, self.more = list(rows), problem, None, False, False

    @property
    def row(self):
        """The first row, or None."""
        return self.rows[0] if self.rows else None


def words(error):
    """An error of the database for readers: our words, or its own message and hint."""
    # A standby refuses a transaction that writes as a feature it has not.
    known = WORDS["25006"] if error.sqlstate == "0A000" and "during recovery" in str(error) else WORDS.get(error.sqlstate)
    if known:
        return known
    said = " ".join(str(error.diag.message_primary or error).split())
    return said + (". " + error.diag.message_hint if error.diag.message_hint else "")


class Session:
    """A connection for one page or action."""

    def __init__(self, database, connection):
        self.database, self.connection, self.asked = database, connection, False

    async def read(self, sql, *args):
        """The answer to a question.  A connection that has died since it was last used is replaced once."""
        limit = self.database.read_timeout
        for last in (self.asked, True):
            self.asked = True
            try:
                async with asyncio.timeout(limit + 3):
                    cursor = await self.connection.execute(sql, args or None)
                    return Answer(await cursor.fetchall())
            except TimeoutError as e:
                await self.connection.close()
                raise Away("The database has not answered for %d s." % (limit + 3)) from e
            except psycopg.OperationalError as e:
                if not self.connection.closed:
                    return Answer(problem=words(e))
                if last:
                    raise Away(words(e)) from e
                self.connection = await self.database.connect()
            except psycopg.Error as e:
                if self.connection.closed:
                    raise Away(words(e)) from e
                return Answer(problem=await self.words(e))

    async def other_version(self):
        """A sentence that says which version the extension is of, where it is not the console's."""
        found = await self.read("SELECT extversion FROM pg_extension WHERE extname = 'outbox'")
        if found.row and found.row["extversion"] == VERSION:
            return None
        if not found.row:
            return found.problem or WORDS["3F000"]
        return "It is of another version than the console: %s, and the console is for %s." % (found.row["extversion"], VERSION)

    async def words(self, error):
        """An error in words.  What the console asks for is missing in another version, or a fault of the console."""
        missing = MISSING.get(error.sqlstate)
        if not missing:
            return words(error)
        other = await self.other_version()
        if other:
            return other if other == WORDS["3F000"] else "The extension in this database has no such %s. %s" % (missing, other)
        LOG.error("a fault of the console: %s", error)
        return "The console has a fault here: it asks for a %s that does not exist. Its log says which." % missing

    async def act(self, actor, calls, alone=False):
        """Carries out calls in the name of an actor, in one transaction or alone.  Returns the value of each and the warnings, or throws psycopg.Error."""
        warnings = []

        def note(diag):   # which is empty after the call
            if diag.severity_nonlocalized == "WARNING":
                warnings.append("Warning: %s. %s" % (diag.message_primary, diag.message_hint or ""))
        await self.read("SELECT 1")
        limit, run = self.database.action_timeout, self.connection.execute
        self.connection.add_notice_handler(note)
        try:
            async with asyncio.timeout(limit + 3), contextlib.nullcontext() if alone else self.connection.transaction():
                await run("SET default_transaction_read_only = off" if alone else "SET TRANSACTION READ WRITE")
                await run("SELECT set_config('statement_timeout', %s, %s), set_config('outbox.actor', %s, %s)",
                          ("%d ms" % (limit * 1000), not alone, actor, not alone))
                return [next(iter((await (await run(sql, args)).fetchone()).values())) for sql, args in calls], warnings
        except TimeoutError as e:
            await self.connection.close()
            raise Away("The database has not answered for %d s. Whether it was done is not known: look before you ask again."
                       % (limit + 3)) from e
        except psycopg.OperationalError as e:
            if self.connection.closed:
                raise Away("The connection was lost. Whether it was done is not known: look before you ask again.") from e
            raise
        finally:
            self.connection.remove_notice_handler(note)
            if alone:   # no other session gets its settings
                await self.connection.close()


class Kept:
    """The newest answer to a question about all endpoints."""

    def __init__(self):
        self.answer, self.until, self.good_until, self.task = None, 0, 0, None


class Database:
    """At most so many connections with one role.  They are made when they are needed."""

    def __init__(self, conninfo, settings):
        self.conninfo, self.idle, self.answers, self.one = conninfo, [], {}, asyncio.Lock()
        self.read_timeout, self.action_timeout = settings.read_timeout, settings.action_timeout
        self.places = asyncio.Semaphore(settings.connections)

    async def connect(self):
        """A new connection whose transactions read, unless they say otherwise."""
        try:
            async with asyncio.timeout(self.read_timeout + 1):
                connection = await psycopg.AsyncConnection.connect(
                    self.conninfo, autocommit=True, row_factory=dict_row, connect_timeout=3, client_encoding="utf8",
                    application_name="outbox-console")
                await connection.execute(
                    "SELECT set_config('default_transaction_read_only', 'on', false),"
                    " set_config('statement_timeout', %s, false), set_config('lock_timeout', '1s', false),"
                    " set_config('idle_in_transaction_session_timeout', '60s', false),"
                    " set_config('TimeZone', 'UTC', false), set_config('IntervalStyle', 'postgres', false),"
                    " set_config('search_path', 'pg_catalog, pg_temp', false), set_config('jit', 'off', false)",
                    ("%d ms" % (self.read_timeout * 1000),))
                return connection
        except TimeoutError as e:
            raise Away("The database does not answer.") from e
        except psycopg.Error as e:
            raise Away(plain(str(e))) from e

    @contextlib.asynccontextmanager
    async def session(self):
        """A session, whose connection goes back when the page is done."""
        try:
            await asyncio.wait_for(self.places.acquire(), 5)
        except TimeoutError as e:
            raise Away("All connections of the console are busy.") from e
        session = None
        try:
            session = Session(self, self.idle.pop() if self.idle else await self.connect())
            yield session
        finally:
            if session and not session.connection.closed:
                if session.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                    self.idle.append(session.connection)
                else:
                    await session.connection.close()
            self.places.release()

    async def ask(self, kept, question, args, least):
        """Asks a question about all endpoints, one such question at a time.  It takes a fiftieth of the time, where it has no problem."""
        async with self.one:
            begun = time.monotonic()
            try:
                async with self.session() as session:
                    answer = await question(session, *args)
            except Away as e:
                answer = Answer(problem=str(e))
            taken = time.monotonic() - begun
            answer.at = datetime.datetime.now(datetime.timezone.utc)
            kept.answer, kept.until = answer, begun + (max(5, 5 * taken) if answer.problem else max(least, 50 * taken))
            kept.good_until = kept.until + 120

    async def kept(self, question, *args, least=0):
        """The answer of question(session, *args), whose cost follows the number of endpoints.

        A page does not wait for it.  Where it takes long, the page has the former answer with its time, and its next reading the new one.
        """
        kept = self.answers.pop((question, *args), None) or Kept()
        self.answers[question, *args] = kept
        if len(self.answers) > 100:
            del self.answers[next(iter(self.answers))]
        if time.monotonic() >= kept.until:
            if not kept.task or kept.task.done():
                kept.task = asyncio.create_task(self.ask(kept, question, args, least))
            await asyncio.wait({kept.task}, timeout=0.02)
        if kept.answer and time.monotonic() < kept.good_until:
            return kept.answer
        answer = Answer(problem="It is being counted, which takes a moment. The page is read again by itself.")
        answer.counting = True
        return answer

    async def close(self):
        """Ends the connections that are not in use."""
        while self.idle:
            await self.idle.pop().close()


def plain(message):
    """libpq's message about a connection: the last line of it, which says why."""
    lines = [line.strip() for line in message.strip().split("\n") if line.strip()]
    said = lines[0].split("FATAL:")[-1].strip() if lines else "there is no connection"
    return said[:1].upper() + said[1:] + ("" if said.endswith(".") else ".")
