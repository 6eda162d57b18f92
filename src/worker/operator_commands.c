/*
 * operator_commands.c
 *	  Owns how commands of operators, the rows of outbox.commands, are carried out:
 *	  a batch at a time, first in the tables and, when that is committed, in memory.
 *
 * Only the worker of an endpoint changes its rows of outbox.parked.  So a session
 * whose command is not committed yet makes nothing wait, and memory agrees with the
 * rows.
 */
#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "base/table_rows.h"
#include "endpoint/lane.h"
#include "endpoint/operator.h"
#include "endpoint/outcome.h"
#include "endpoint/parking.h"
#include "endpoint/retries.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/kept.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/loop.h"
#include "worker/operator_commands.h"
#include "worker/reader.h"
#include "worker/roster.h"

/* Commands per transaction. */
#define BATCH 500

/*
 * The table is gone through from its beginning to its end, a batch at a time.  A batch
 * begins behind the last command of the one before, because a snapshot may keep VACUUM
 * from removing the rows before it.  Where an endpoint has to wait, all its commands are
 * left alone to the end of the pass, so that they keep their order.
 */
static struct
{
	int64		passed;		/* the last command of the previous batch (0: none) */
	TimestampTz begun;		/* as now() in its first batch */
	List	   *left_alone; /* ids of endpoints */
} pass;

static bool		   careful;				/* true if each is tried by itself, because
										 * together they failed */
static TimestampTz retry_at = DT_NOEND; /* when a command that was set aside is tried
										 * again */

typedef enum Effect
{
	EFFECT_NONE,
	EFFECT_REVIVE,
	EFFECT_HURRY,
	EFFECT_BURY,
	EFFECT_CANCEL_RETRY,
	EFFECT_CANCEL_FOLLOWER,
	EFFECT_SKIP,
	EFFECT_DUE,
	EFFECT_RESEND,
	EFFECT_PROBE
} Effect;

typedef struct Command
{
	int64			id;
	int32			endpoint_id;
	OutboxEndpoint *ep; /* NULL: it was dropped, or is not loaded yet */
	int64			seq;
	char		   *action;
	char		   *status; /* NULL: no row in outbox.parked */
	char		   *key;
	bool			blocked; /* true if it is dead in a way that can block its key */
	bool			known;	 /* true if the event was found */
	uint64			xid;
	TimestampTz		due;	/* next_attempt_at of a row that says 'retrying' */
	bool			counts; /* true if a delivery was cancelled */
	bool			left_alone;
	Effect			effect;
} Command;

static bool
is(const char *a, const char *b)
{
	return a != NULL && strcmp(a, b) == 0;
}

static void
execute(const char *sql, int32 endpoint_id, int64 seq)
{
	Datum args[2] = {Int32GetDatum(endpoint_id), Int64GetDatum(seq)};

	outbox_query(sql, 2, (Oid[]){INT4OID, INT8OID}, args, NULL);
}

/* True if the delivery is only in the table, or in memory only as a retry. */
static bool
waits(Command *c)
{
	return outbox_retries_contains(c->ep, c->seq) ||
		!outbox_operator_in_memory(c->ep, c->seq, c->key);
}

#define THIS_ROW " WHERE endpoint_id = $1 AND seq = $2"

static void
cancel(Command *c)
{
	const OutboxCursor *frontier = outbox_window_frontier(c->ep, &outbox_loop.head);

	if (is(c->status, "retrying") && waits(c))
		c->effect = EFFECT_CANCEL_RETRY;
	else if (is(c->status, "blocked") &&
			 !outbox_operator_in_memory(c->ep, c->seq, c->key))
		c->effect = EFFECT_CANCEL_FOLLOWER;
	else if (is(c->status, "dead"))
		c->effect = EFFECT_BURY;
	else if (c->status == NULL && c->known &&
			 !outbox_cursor_covers(frontier, c->xid, c->seq))
		c->effect = EFFECT_SKIP;
	else
		return; /* it is being delivered, or has been */

	c->counts = true;
	if (c->effect == EFFECT_SKIP)
	{
		execute("INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status,"
				" reason, attempts, parked_at) SELECT $1, e.seq, e.id,"
				" outbox.order_key(e.tenant, e.key),"
				" 'cancelled', 'cancelled', 0, pg_catalog.now()"
				" FROM outbox.all_events e WHERE e.seq = $2",
				c->ep->id, c->seq);
		outbox_kept_add(&c->seq, 1);
	}
	else
		execute("UPDATE outbox.parked SET status = 'cancelled', reason = 'cancelled',"
				" next_attempt_at = NULL" THIS_ROW,
				c->ep->id, c->seq);
}

/*
 * The event is forgotten.  A delivery in memory is left as it is: a later pass of
 * forget.c asks again.
 */
static void
forget(Command *c)
{
	if (c->status == NULL || outbox_parked_is_gone(c->ep->id, c->seq) ||
		(is(c->status, "retrying") && !waits(c)) ||
		(is(c->status, "blocked") && outbox_operator_in_memory(c->ep, c->seq, c->key)))
		return;
	if (is(c->status, "retrying"))
		c->effect = EFFECT_CANCEL_RETRY;
	else if (is(c->status, "blocked"))
		c->effect = EFFECT_CANCEL_FOLLOWER;
	else if (is(c->status, "dead"))
		c->effect = EFFECT_BURY;
	c->counts = c->effect != EFFECT_NONE;
	outbox_parked_empty(c->ep->id, c->seq);
}

/* A delivery that is not settled yet, or was parked meanwhile, is left as it is. */
static void
resend(Command *c)
{
	if (c->status != NULL || !c->known ||
		!outbox_cursor_covers(outbox_window_frontier(c->ep, &outbox_loop.head), c->xid,
							  c->seq) ||
		outbox_operator_in_memory(c->ep, c->seq, c->key))
		return;
	execute("INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status,"
			" attempts, next_attempt_at, redelivery, parked_at)"
			" SELECT $1, e.seq, e.id, outbox.order_key(e.tenant, e.key), 'retrying', 0,"
			" pg_catalog.now(), 2,"
			" pg_catalog.now()"
			" FROM outbox.all_events e WHERE e.seq = $2"
			" RETURNING next_attempt_at",
			c->ep->id, c->seq);
	c->due = row_time(fetch_row(0), 0, 0);
	c->effect = EFFECT_RESEND;
	outbox_kept_add(&c->seq, 1);
}

static void
carry_out(Command *c)
{
	if (is(c->action, "forget"))
		forget(c);
	else if (is(c->action, "cancel"))
		cancel(c);
	else if (is(c->action, "retry"))
	{
		if (is(c->status, "dead"))
			c->effect = EFFECT_REVIVE;
		else if (is(c->status, "retrying") && waits(c))
			c->effect = EFFECT_HURRY;
		else
			return;
		execute("UPDATE outbox.parked SET status = 'retrying', reason = NULL,"
				" attempts = 0, first_attempt_at = NULL, redelivery = 1,"
				" next_attempt_at = pg_catalog.now()" THIS_ROW
				" RETURNING next_attempt_at",
				c->ep->id, c->seq);
		c->due = row_time(fetch_row(0), 0, 0);
	}
	else if (is(c->action, "discard") && is(c->status, "dead"))
	{
		c->effect = EFFECT_BURY;
		execute(
			"UPDATE outbox.parked SET status = 'cancelled', reason = 'discarded'" THIS_ROW,
			c->ep->id, c->seq);
	}
	else if (is(c->action, "due") && is(c->status, "retrying") &&
			 !outbox_retries_contains(c->ep, c->seq) &&
			 !outbox_operator_in_memory(c->ep, c->seq, c->key))
		c->effect = EFFECT_DUE;
	else if (is(c->action, "resend"))
		resend(c);
	else if (is(c->action, "probe"))
		c->effect = EFFECT_PROBE;
}

static void
carry_out_and_delete(void *arg)
{
	Command *c = arg;

	if (c->ep)
		carry_out(c);
	execute("DELETE FROM outbox.commands WHERE"
			" command_id = $2 AND $1 IS NOT NULL",
			0, c->id);
}

/* The command failed: notes the error in its row, which stays. */
static void
set_aside(const Command *c, const OutboxStepError *failure)
{
	Datum args[3] = {Int64GetDatum(c->id), CStringGetTextDatum(failure->message),
					 Int32GetDatum(
						 OUTBOX_SET_ASIDE_SECS(outbox_step_was_locked(failure)))};

	outbox_query("UPDATE outbox.commands" OUTBOX_SET_ASIDE " WHERE command_id = $1", 3,
				 (Oid[]){INT8OID, TEXTOID, INT4OID}, args, NULL);
}

/*
 * Finds out when a command that was set aside is tried again.  A command whose time had
 * come when the pass began is left alone, or another worker's.
 */
static void
find_retry(void)
{
	OutboxColumns row;
	Datum		  args[1] = {TimestampTzGetDatum(pass.begun)};

	outbox_query("SELECT pg_catalog.min(retry_at) FROM outbox.commands"
				 " WHERE retry_at > $1",
				 1, (Oid[]){TIMESTAMPTZOID}, args, NULL);
	row = fetch_row(0);
	retry_at = row_time(row, 0, DT_NOEND);
}

void
outbox_operator_commands_failed(void)
{
	careful = true;
	outbox_loop.commands_pending = true;
}

bool
outbox_operator_commands_have_work(void)
{
	return outbox_loop.commands_pending || pass.passed > 0;
}

TimestampTz
outbox_operator_commands_next_time(void)
{
	return retry_at;
}

/* After the commit.  Of the strings only 'key' is still there. */
static void
take_effect(Command *c)
{
	if (c->counts)
	{
		outbox_tally_count(c->ep, OUTBOX_COUNT_CANCELLED);
		c->ep->place.dirty = true; /* so that the count is stored */
	}
	switch (c->effect)
	{
		case EFFECT_NONE:
			return;
		case EFFECT_REVIVE:
			outbox_operator_retry_dead(c->ep, c->seq, c->key, c->blocked, c->due);
			break;
		case EFFECT_HURRY:
			outbox_operator_retry_now(c->ep, c->seq, c->key, c->due);
			break;
		case EFFECT_BURY:
			outbox_operator_discard_dead(c->ep, c->seq, c->key, c->blocked);
			break;
		case EFFECT_CANCEL_RETRY:
			outbox_operator_cancel_retry(c->ep, c->seq, c->key);
			break;
		case EFFECT_CANCEL_FOLLOWER:
			outbox_operator_cancel_follower(c->ep, c->seq, c->key);
			break;
		case EFFECT_SKIP:
			outbox_operator_skip(c->ep, c->seq,
								 outbox_cursor_covers(c->ep->feed->counted ?
														  &outbox_loop.head :
														  &c->ep->feed->counter,
													  c->xid, c->seq));
			break;
		case EFFECT_DUE:
			/* Another session made the row, so the count may have it already. */
			if (c->ep->queue->retries_all)
				outbox_parking_count_row(c->ep, c->seq, OUTBOX_ROW_RETRYING, 1);
			else
				outbox_parked_count_again(c->ep);
			outbox_retries_add_parked(c->ep, c->seq, c->due, c->key, 0);
			break;
		case EFFECT_RESEND:
			outbox_parking_count_row(c->ep, c->seq, OUTBOX_ROW_RETRYING, 1);
			outbox_retries_add_parked(c->ep, c->seq, c->due, c->key, 0);
			break;
		case EFFECT_PROBE:
			outbox_operator_probe(c->ep, GetCurrentTimestamp());
			break;
	}
	outbox_busy_add(c->ep);
}

/* clang-format off */
#define COLUMNS(first, next) \
	first(COL_ID, "c.command_id") \
	next(COL_ENDPOINT_ID, "c.endpoint_id") \
	next(COL_SEQ, "c.seq") \
	next(COL_ACTION, "c.action") \
	next(COL_STATUS, "k.status") \
	next(COL_KEY, "COALESCE(k.key, e.key)") \
	next(COL_XID, "e.xid") \
	next(COL_REASON, "k.reason") \
	next(COL_DUE, "k.next_attempt_at")
/* clang-format on */

enum
{
	OUTBOX_COLUMN_NUMBERS(COLUMNS)
};

/*
 * Reads the next commands, with the rows of their deliveries, and returns how many.
 */
static int
fetch(Command *commands)
{
	Datum args[2] = {outbox_shares_array(), Int64GetDatum(pass.passed)};
	int	  n;

	n = (int) outbox_query(
		OUTBOX_SELECT(
			COLUMNS) " FROM (SELECT * FROM outbox.commands"
					 " WHERE " OUTBOX_SHARE_OF_ENDPOINT " = ANY ($1)"
					 " AND command_id > $2"
					 " AND (retry_at IS NULL OR retry_at <= pg_catalog.now()) ORDER BY command_id LIMIT " CppAsString2(
						 BATCH) ") c"
								" LEFT JOIN outbox.parked k"
								" ON k.endpoint_id = c.endpoint_id"
								" AND k.seq = c.seq"
								" LEFT JOIN LATERAL (SELECT outbox.order_key(a.tenant, a.key) AS key, a.xid FROM outbox.all_events a"
								" WHERE a.seq = c.seq LIMIT 1) e ON true"
								" ORDER BY c.command_id",
		2, (Oid[]){INT4ARRAYOID, INT8OID}, args, NULL);
	for (int i = 0; i < n; i++)
	{
		OutboxColumns row = fetch_row(i);
		Command		 *c = &commands[i];

		memset(c, 0, sizeof(*c));
		c->id = row_int8(row, COL_ID);
		c->endpoint_id = row_int4(row, COL_ENDPOINT_ID);
		c->ep = outbox_loop_find(c->endpoint_id);
		if (c->ep)
			outbox_busy_add(c->ep);
		c->seq = row_int8(row, COL_SEQ);
		c->action = row_text(row, COL_ACTION);
		c->status = row_text(row, COL_STATUS);
		c->key = row_text(row, COL_KEY);
		c->blocked = outbox_outcome_reason_blocks(row_text(row, COL_REASON));
		c->due = row_time(row, COL_DUE, 0);
		c->known = !row.nulls[COL_XID];
		if (c->known)
			c->xid = U64FromFullTransactionId(
				DatumGetFullTransactionId(row.values[COL_XID]));
	}
	return n;
}

static void
begin_pass(void)
{
	pass.begun = GetCurrentTransactionStartTimestamp();
	list_free(pass.left_alone);
	pass.left_alone = NIL;
	retry_at = DT_NOEND;
}

/*
 * True if the command waits, while the endpoint is being loaded, here or in another
 * worker, or cannot be stored.  When that is over, there is another pass.
 */
static bool
leave_alone(const Command *c)
{
	MemoryContext old;

	if (list_member_int(pass.left_alone, c->endpoint_id))
		return true;
	if (c->ep ? !c->ep->member.recreate && !c->ep->status.unstorable :
				!outbox_roster_expects(c->endpoint_id))
		return false;
	old = MemoryContextSwitchTo(TopMemoryContext);
	pass.left_alone = lappend_int(pass.left_alone, c->endpoint_id);
	MemoryContextSwitchTo(old);
	return true;
}

/*
 * Returns how many of the commands can be carried out together, or are left alone.  The
 * row read of a delivery is true until a command changes it.  So the batch ends before a
 * command for the same delivery, and before another action.  A probe concerns no
 * delivery, and ends no batch.
 */
static int
together(Command *commands, int n)
{
	const char *action = NULL;

	for (int i = 0; i < n; i++)
	{
		commands[i].left_alone = leave_alone(&commands[i]);
		if (commands[i].left_alone || is(commands[i].action, "probe"))
			continue;
		if (action != NULL && !is(commands[i].action, action))
			return i;
		action = commands[i].action;
		for (int j = 0; j < i; j++)
			if (commands[j].ep == commands[i].ep && commands[j].seq == commands[i].seq)
				return i;
	}
	return n;
}

void
outbox_operator_commands_run(void)
{
	MemoryContext	caller = CurrentMemoryContext;
	Command		   *commands = palloc(sizeof(Command) * BATCH);
	bool			first = pass.passed == 0;
	bool			failed = false;
	bool			more;
	int				found;
	int				n;
	OutboxStepError failure;

	outbox_txn_begin_step();
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_KEPT_EVENTS);
	if (first)
		begin_pass();
	found = fetch(commands);
	n = together(commands, found);
	for (int i = 0; i < n; i++)
	{
		Command *c = &commands[i];

		if (c->left_alone)
			continue;
		if (!careful)
			carry_out_and_delete(c);
		else if (!outbox_step_try_part(carry_out_and_delete, c, &failure))
		{
			c->effect = EFFECT_NONE;
			c->counts = false;
			set_aside(c, &failure);
			failed = true;
		}
		if (c->key)
			c->key = MemoryContextStrdup(caller, c->key);
	}
	more = n < found || found == BATCH;
	if (!more)
		find_retry();
	careful = failed;
	OUTBOX_CRASH_POINT("command.written");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("command.committed");

	for (int i = 0; i < n; i++)
		take_effect(&commands[i]);

	/*
	 * Commands committed before the first batch began are in this pass.  For the rest,
	 * and for commands that were left alone, commands_pending is set again.
	 */
	if (first)
		outbox_loop.commands_pending = false;
	pass.passed = more ? commands[n - 1].id : 0;
}
