"""Stands in for psycopg 3 where it is not installed, for the examples of doc/inbox.md.

Connections, transactions, statements with %s, and rows of text and booleans, through
libpq.  Nothing else.
"""

import contextlib
import ctypes
import ctypes.util

_pq = ctypes.CDLL(ctypes.util.find_library("pq") or "libpq.so.5")
for _name in ("PQconnectdb", "PQexecParams"):
    getattr(_pq, _name).restype = ctypes.c_void_p
for _name in ("PQgetvalue", "PQerrorMessage", "PQresultErrorMessage"):
    getattr(_pq, _name).restype = ctypes.c_char_p
_COMMAND_OK, _TUPLES_OK = 1, 2
_BOOL = 16


class Error(Exception):
    pass


def _text(value):
    if value is None:
        return None
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, (list, tuple)):
        quoted = ('"%s"' % v.replace("\\", "\\\\").replace('"', '\\"') for v in value)
        return ("{%s}" % ",".join(quoted)).encode()
    return str(value).encode()


class Cursor:
    def __init__(self, rows):
        self.rows = rows

    def fetchone(self):
        return self.rows.pop(0) if self.rows else None


class Connection:
    def __init__(self, conninfo, autocommit):
        self.autocommit = autocommit
        self.begun = False
        self.pq = ctypes.c_void_p(_pq.PQconnectdb(conninfo.encode()))
        if _pq.PQstatus(self.pq) != 0:
            raise Error(_pq.PQerrorMessage(self.pq).decode())

    def _run(self, sql, params=()):
        for n in range(len(params)):
            sql = sql.replace("%s", "$%d" % (n + 1), 1)
        values = (ctypes.c_char_p * len(params))(*map(_text, params))
        result = ctypes.c_void_p(
            _pq.PQexecParams(self.pq, sql.encode(), len(params), None, values, None, None, 0))
        try:
            if _pq.PQresultStatus(result) not in (_COMMAND_OK, _TUPLES_OK):
                raise Error(_pq.PQresultErrorMessage(result).decode())
            return [tuple(self._value(result, row, column) for column in range(_pq.PQnfields(result)))
                    for row in range(_pq.PQntuples(result))]
        finally:
            _pq.PQclear(result)

    @staticmethod
    def _value(result, row, column):
        if _pq.PQgetisnull(result, row, column):
            return None
        text = _pq.PQgetvalue(result, row, column).decode()
        return text == "t" if _pq.PQftype(result, column) == _BOOL else text

    def execute(self, sql, params=()):
        if not self.autocommit and not self.begun:
            self._run("BEGIN")
            self.begun = True
        return Cursor(self._run(sql, params))

    @contextlib.contextmanager
    def transaction(self):
        self._run("BEGIN")
        try:
            yield
        except BaseException:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if self.begun:
                self._run("ROLLBACK" if kind else "COMMIT")
        finally:
            _pq.PQfinish(self.pq)


def connect(conninfo, autocommit=False):
    return Connection(conninfo, autocommit)
