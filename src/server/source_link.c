/*
 * source_link.c
 *	  Asks a server that outbox.follow() follows, by the connection that PostgreSQL's own
 *	  subscriptions use.
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "replication/walreceiver.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "base/version.h"

static void
cannot_connect(const char *problem)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_CONNECTION_FAILURE),
		 errmsg("could not connect to the source: %s", problem),
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
 * ask_source(conninfo text, query text) → SETOF text[]: the rows of a query of one column.
 * A command returns none.  Throws what the source answers (its SQLSTATE), or 08006.
 */
OUTBOX_FUNCTION(outbox_ask_source_1_0, 2)
{
	ReturnSetInfo	 *info = (ReturnSetInfo *) fcinfo->resultinfo;
	const Oid		  types[1] = {TEXTARRAYOID};
	WalReceiverConn	 *conn;
	WalRcvExecResult *answer;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(
			ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("conninfo must not be null"),
			 errhint(
				 "Pass a connection string, like 'host=db.example dbname=shop user=outbox'.")));
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	conn = connect_to(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_TRY();
	{
		answer = walrcv_exec(conn, text_to_cstring(PG_GETARG_TEXT_PP(1)), 1, types);
		if (answer->status != WALRCV_OK_TUPLES && answer->status != WALRCV_OK_COMMAND)
			ereport(ERROR,
					(errcode(answer->sqlstate != 0 ? answer->sqlstate :
													 ERRCODE_CONNECTION_FAILURE),
					 errmsg("the source refuses: %s",
							answer->err != NULL ? answer->err : "no reason given"),
					 errhint("The log of the source has the statement.")));
		if (answer->tuplestore != NULL)
		{
			TupleTableSlot *slot = MakeSingleTupleTableSlot(answer->tupledesc,
															&TTSOpsMinimalTuple);

			while (tuplestore_gettupleslot(answer->tuplestore, true, false, slot))
			{
				CHECK_FOR_INTERRUPTS();
				slot_getallattrs(slot);
				tuplestore_putvalues(info->setResult, info->setDesc, slot->tts_values,
									 slot->tts_isnull);
			}
			ExecDropSingleTupleTableSlot(slot);
		}
		walrcv_clear_result(answer);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	return (Datum) 0;
}

/*
 * refuse_in_block(function text): throws inside BEGIN and COMMIT.  A slot that was made at
 * a source stays there after ROLLBACK, and one that was dropped does not come back.
 */
OUTBOX_FUNCTION(outbox_refuse_in_block_1_0, 1)
{
	if (IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block",
						PG_ARGISNULL(0) ? "it" : text_to_cstring(PG_GETARG_TEXT_PP(0))),
				 errhint(
					 "Call it outside BEGIN and COMMIT: ROLLBACK does not undo what it "
					 "does at the source.")));
	PG_RETURN_VOID();
}
