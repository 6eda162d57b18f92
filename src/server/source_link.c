/*
 * source_link.c
 *	  Asks a server that outbox.follow() follows, by the connection that PostgreSQL's own
 *	  subscriptions use.
 *
 * That server may be hostile.  Its answers have a bound in memory and, in a process without
 * a user, in time, and each text has the encoding of this database.
 */
#include "base/outbox.h"

#include <sys/resource.h>

#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "postmaster/bgworker.h"
#include "replication/walreceiver.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timeout.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "base/encoding.h"
#include "base/memory.h"
#include "base/version.h"

#define ANSWER_BYTES ((rlim_t) 128 * 1024 * 1024)
#define ANSWER_MOST 60000 /* ms */
#define PAGES_MOST 600000 /* ms, for an answer of many rows */
#define WORDS_BYTES 1000  /* of an error */

/* The words of a source about a problem, as this database can store them. */
static const char *
words(const char *s)
{
	return s == NULL ? "no reason given" :
					   outbox_foreign_text(s, Min(strlen(s), WORDS_BYTES));
}

static void
cannot_connect(const char *problem)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_CONNECTION_FAILURE),
		 errmsg("could not connect to the source: %s", words(problem)),
		 errhint(
			 "The source must let the role in, which needs the attribute REPLICATION, or what the service has in its place. This server reads the files of passfile and sslrootcert as its operating system user, and a passfile only with mode 0600.")));
}

/* PostgreSQL returns most problems in words, and throws that of a malformed string. */
static WalReceiverConn *
connect_to(const char *conninfo)
{
	MemoryContext	 cxt = CurrentMemoryContext;
	WalReceiverConn *conn = NULL;
	char			*problem;

	/* Loads the functions into WalReceiverFunctions. */
	load_file("libpqwalreceiver", false);
	PG_TRY();
	{
		conn = outbox_logical_connect(conninfo, "outbox", &problem);
	}
	PG_CATCH();
	{
		ErrorData *error;

		if (geterrcode() != ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION &&
			geterrcode() != ERRCODE_SYNTAX_ERROR) /* from 19 on */
			PG_RE_THROW();
		MemoryContextSwitchTo(cxt);
		error = CopyErrorData();
		FlushErrorState();
		cannot_connect(error->detail ? error->detail : error->message);
	}
	PG_END_TRY();
	if (conn == NULL)
		cannot_connect(problem);
	return conn;
}

/*
 * libpq keeps an answer as a whole.  So the system gives this process no more memory than
 * ANSWER_BYTES while it asks: the answer then ends in an error, and not in the kernel's
 * choice of a process to end.  Returns the limit that was there before.
 */
static struct rlimit
bound_memory(void)
{
	struct rlimit before;
	struct rlimit bound;
	size_t		  size = 0;

	(void) outbox_memory_resident(&size);
	if (getrlimit(RLIMIT_DATA, &before) != 0)
		before = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
	bound = before;
	if (size != 0 && size + ANSWER_BYTES < before.rlim_cur)
		bound.rlim_cur = size + ANSWER_BYTES;
	(void) setrlimit(RLIMIT_DATA, &bound);
	return before;
}

static WalRcvExecResult *
bounded_answer(WalReceiverConn *conn, const char *query)
{
	const Oid	  types[1] = {TEXTARRAYOID};
	struct rlimit before = bound_memory();
	WalRcvExecResult *volatile answer = NULL;

	PG_TRY();
	{
		answer = walrcv_exec(conn, query, 1, types);
	}
	PG_FINALLY();
	{
		(void) setrlimit(RLIMIT_DATA, &before);
	}
	PG_END_TRY();
	return answer;
}

/* Throws if a text is none in the encoding of this database.  Returns the bytes of the row. */
static size_t
check_row(Datum row)
{
	ArrayType *array = DatumGetArrayTypeP(row);
	Datum	  *values;
	bool	  *nulls;
	int		   n;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		const void *text = DatumGetPointer(values[i]);

		if (!nulls[i])
			(void) pg_verify_mbstr(GetDatabaseEncoding(), VARDATA_ANY(text),
								   (int) VARSIZE_ANY_EXHDR(text), false);
	}
	pfree(values);
	pfree(nulls);
	return VARSIZE(array);
}

/* Puts the rows into a tuplestore.  They have 'most' bytes, or any number (negative). */
static void
take_rows(const WalRcvExecResult *answer, int64 most, Tuplestorestate *rows,
		  TupleDesc desc)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(answer->tupledesc,
													&TTSOpsMinimalTuple);
	size_t			bytes = 0;

	while (tuplestore_gettupleslot(answer->tuplestore, true, false, slot))
	{
		CHECK_FOR_INTERRUPTS();
		slot_getallattrs(slot);
		if (!slot->tts_isnull[0])
			bytes += check_row(slot->tts_values[0]);
		if (most >= 0 && bytes > (size_t) most)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("the answer of the source has more than " INT64_FORMAT
							" bytes",
							most),
					 errhint("See whether its functions are those of sql/source.sql.")));
		tuplestore_putvalues(rows, desc, slot->tts_values, slot->tts_isnull);
	}
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * ask_source(conninfo text, query text, most int4) → SETOF text[]: the rows of a query of one
 * column, of 'most' bytes together (NULL: of more, as much as memory has room for).  A command
 * returns none.  Throws what the source answers (its SQLSTATE), 08006, or 54000.
 */
OUTBOX_FUNCTION(outbox_ask_source_1_0, 3)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	const bool timed = MyBgworkerEntry != NULL && !get_timeout_active(STATEMENT_TIMEOUT);
	WalReceiverConn *volatile conn = NULL;
	WalRcvExecResult *answer;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(
			ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("conninfo must not be null"),
			 errhint(
				 "Pass a connection string, like 'host=db.example dbname=shop user=outbox'.")));
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	/* A user can cancel it.  Where there is none, the time has a bound. */
	if (timed)
		enable_timeout_after(STATEMENT_TIMEOUT,
							 PG_ARGISNULL(2) ? PAGES_MOST : ANSWER_MOST);
	PG_TRY();
	{
		conn = connect_to(text_to_cstring(PG_GETARG_TEXT_PP(0)));
		answer = bounded_answer(conn, text_to_cstring(PG_GETARG_TEXT_PP(1)));
		if (answer->status != WALRCV_OK_TUPLES && answer->status != WALRCV_OK_COMMAND)
			ereport(ERROR,
					(errcode(answer->sqlstate != 0 ? answer->sqlstate :
													 ERRCODE_CONNECTION_FAILURE),
					 errmsg("the source refuses: %s", words(answer->err)),
					 errhint("The log of the source has the statement.")));
		if (answer->tuplestore != NULL)
			take_rows(answer, PG_ARGISNULL(2) ? -1 : PG_GETARG_INT32(2), info->setResult,
					  info->setDesc);
		walrcv_clear_result(answer);
	}
	PG_FINALLY();
	{
		if (timed)
			disable_timeout(STATEMENT_TIMEOUT, false);
		if (conn != NULL)
			walrcv_disconnect(conn);
	}
	PG_END_TRY();
	return (Datum) 0;
}

/*
 * refuse_snapshot(function text, in_block bool): throws where the snapshot may be older than
 * the latest commit.  'in_block': throws also inside BEGIN and COMMIT.  A slot that was made
 * at a source stays there after ROLLBACK, and one that was dropped does not come back.
 */
OUTBOX_FUNCTION(outbox_refuse_snapshot_1_0, 2)
{
	const char *function = PG_ARGISNULL(0) ? "it" : text_to_cstring(PG_GETARG_TEXT_PP(0));

	if (PG_GETARG_BOOL(1) && IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", function),
				 errhint(
					 "Call it outside BEGIN and COMMIT: ROLLBACK does not undo what it "
					 "does at the source.")));
	if (IsolationUsesXactSnapshot())
		ereport(
			ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("%s cannot be called at isolation level %s", function,
					IsolationIsSerializable() ? "SERIALIZABLE" : "REPEATABLE READ"),
			 errhint(
				 "Use READ COMMITTED: it has to see what was committed a moment ago. SET default_transaction_isolation = 'read committed'.")));
	PG_RETURN_VOID();
}

/*
 * lock_source(name text, of oid, wait bool) → bool: locks a name until the transaction ends.
 * Any role could take an advisory lock.  'of': oid of outbox.followed.
 */
OUTBOX_FUNCTION(outbox_lock_source_1_0, 3)
{
	uint32 hash = DatumGetUInt32(
		DirectFunctionCall1Coll(hashtext, C_COLLATION_OID, PG_GETARG_DATUM(0)));
	LOCKTAG tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, PG_GETARG_OID(1), hash, 0);
	PG_RETURN_BOOL(LockAcquire(&tag, ExclusiveLock, false, !PG_GETARG_BOOL(2)) !=
				   LOCKACQUIRE_NOT_AVAIL);
}
