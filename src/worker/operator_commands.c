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

#include "base/crash_point.h"
#include "base/log_lines.h"
#include "base/query.h"
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
#include "store/asked.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/command_pass.h"
#include "worker/loop.h"
#include "worker/operator_commands.h"
#include "worker/slots.h"

/* Commands of one transaction at most, and µs after which it takes no more of them. */
#define BATCH 200
#define BATCH_TIME (5 * 1000)

/* A batch that took more than so many µs was held up by the disk or the machine. */
#define BATCH_LONGEST (50 * 1000)

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
	int64			generation; /* of the endpoint's settings (0: it was dropped) */
	char		   *action;
	char		   *status; /* NULL: no row in outbox.parked */
	char		   *key;
	bool			blocked;   /* true if it is dead in a way that can block its key */
	bool			overruled; /* by a later one for another action */
	bool			follows;   /* one that was set aside, for the same delivery */
	uint64			xid;	   /* of the event (0: it was not found) */
	TimestampTz		due;	   /* next_attempt_at of a row that says 'retrying' */
	ItemPointerData place;	   /* of the command */
	uint64			asked_by;  /* its transaction */
	ItemPointerData row;	   /* of the delivery */
	bool			changes;   /* true if this row is changed */
	OutboxCounter	counts;	   /* a delivery that waited has ended (0: none did) */
	bool			left_alone;
	Effect			effect;
} Command;

static bool
is(const char *a, const char *b)
{
	return a != NULL && strcmp(a, b) == 0;
}

static void
insert(const char *sql, const Command *c)
{
	outbox_query(sql, arg_int4(c->ep->id), arg_int8(c->seq));
	outbox_kept_add(&c->seq, 1);
}

/* True if the delivery is only in the table, or in memory only as a retry. */
static bool
waits(Command *c)
{
	return outbox_retries_contains(c->ep, c->seq) ||
		!outbox_operator_in_memory(c->ep, c->seq, c->key);
}

/* Returns how a delivery with a row ends.  One that was sent is left as it is. */
static Effect
end_of(Command *c)
{
	bool sent = outbox_operator_has_sent(c->ep, c->seq);

	if (is(c->status, "retrying") && !sent)
		return EFFECT_CANCEL_RETRY;
	if (is(c->status, "blocked") && !sent)
		return EFFECT_CANCEL_FOLLOWER;
	return is(c->status, "dead") ? EFFECT_BURY : EFFECT_NONE;
}

static void
cancel(Command *c)
{
	const OutboxCursor *frontier = outbox_window_frontier(c->ep, &outbox_loop.head);

	c->effect = end_of(c);
	c->changes = c->effect != EFFECT_NONE;
	if (c->status == NULL && c->xid != 0 &&
		!outbox_cursor_covers(frontier, c->xid, c->seq))
		c->effect = EFFECT_SKIP;
	if (c->effect != EFFECT_NONE)
		c->counts = OUTBOX_COUNT_CANCELLED; /* else it is being delivered, or has been */
	if (c->effect == EFFECT_SKIP)
		insert("INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status,"
			   " reason, attempts, parked_at) SELECT $1, e.seq, e.id,"
			   " outbox.order_key(e.tenant, e.key),"
			   " 'cancelled', 'cancelled', 0, pg_catalog.now()"
			   " FROM outbox.all_events e WHERE e.seq = $2",
			   c);
}

/*
 * The event is forgotten.  A delivery in memory is left as it is: a later pass of
 * forget.c asks again.
 */
static void
forget(Command *c)
{
	if (c->status == NULL || outbox_parked_is_gone(c->ep->id, c->seq))
		return;
	c->effect = end_of(c);
	if (c->effect != EFFECT_NONE)
		c->counts = OUTBOX_COUNT_CANCELLED;
	else if (!is(c->status, "cancelled"))
		return;
	outbox_parked_empty(c->ep->id, c->seq);
}

/*
 * A delivery that is not settled yet, or was parked meanwhile, is left as it is.  The
 * piece of the log may have been emptied since the command was given.
 */
static void
resend(Command *c)
{
	const char *name = c->ep->config.name;

	if (c->status == NULL && c->xid == 0)
		ereport(outbox_log_line_may(OUTBOX_LINE_DEAD, name) ? WARNING : DEBUG1,
				(errmsg("outbox event with seq " INT64_FORMAT
						" for endpoint \"%s\" is gone, and is not sent again",
						c->seq, name)));
	if (c->status != NULL || c->xid == 0 ||
		!outbox_cursor_covers(outbox_window_frontier(c->ep, &outbox_loop.head), c->xid,
							  c->seq) ||
		outbox_operator_in_memory(c->ep, c->seq, c->key))
		return;
	insert("INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status,"
		   " attempts, next_attempt_at, redelivery, parked_at)"
		   " SELECT $1, e.seq, e.id, outbox.order_key(e.tenant, e.key), 'retrying', 0,"
		   " pg_catalog.now(), 3,"
		   " pg_catalog.now()"
		   " FROM outbox.all_events e WHERE e.seq = $2",
		   c);
	c->due = GetCurrentTransactionStartTimestamp();
	c->effect = EFFECT_RESEND;
}

/* Decides what the command does.  Rows that are there are changed by write_rows(). */
static void
carry_out(Command *c)
{
	if (c->overruled)
		return;
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
		c->changes = true;
		c->due = GetCurrentTransactionStartTimestamp();
	}
	else if (is(c->action, "discard") || is(c->action, "limit"))
	{
		/* A dead letter was counted when it died.  One to discard may be retried by now. */
		c->effect = end_of(c);
		c->changes = c->effect != EFFECT_NONE;
		if (c->changes && c->effect != EFFECT_BURY)
			c->counts = is(c->action, "limit") ? OUTBOX_COUNT_BACKLOG :
												 OUTBOX_COUNT_CANCELLED;
	}
	else if (is(c->action, "due") && is(c->status, "retrying") &&
			 !outbox_retries_contains(c->ep, c->seq) &&
			 !outbox_operator_in_memory(c->ep, c->seq, c->key))
		c->effect = EFFECT_DUE;
	else if (is(c->action, "resend"))
		resend(c);
	else if (is(c->action, "probe") && !outbox_outcome_rests_since(c->ep, c->asked_by))
		c->effect = EFFECT_PROBE;
}

static void
run_on_rows(const char *sql, Datum *rows, int n)
{
	outbox_query(sql, arg_datum(TIDARRAYOID, outbox_array(rows, n, TIDOID)));
}

/*
 * Changes the rows of deliveries, and deletes the commands, which are for the same action.
 * In this transaction both were read at these places, so no index has to be chosen.
 */
static void
write_rows(Command *commands, int n)
{
	Datum	   *rows = palloc(sizeof(Datum) * n);
	Datum	   *done = palloc(sizeof(Datum) * n);
	int			nrows = 0;
	int			ndone = 0;
	const char *action = NULL;

	for (int i = 0; i < n; i++)
	{
		Command *c = &commands[i];

		if (c->left_alone)
			continue;
		done[ndone++] = PointerGetDatum(&c->place);
		if (!c->changes)
			continue;
		rows[nrows++] = PointerGetDatum(&c->row);
		action = c->action;
	}
	if (nrows > 0)
		run_on_rows(is(action, "retry") ?
						"UPDATE outbox.parked SET status = 'retrying', reason = NULL,"
						" attempts = 0, first_attempt_at = NULL, redelivery = 1,"
						" next_attempt_at = pg_catalog.now() WHERE ctid = ANY ($1)" :
						psprintf("UPDATE outbox.parked SET status = 'cancelled',"
								 " reason = '%s', next_attempt_at = NULL"
								 " WHERE ctid = ANY ($1)",
								 is(action, "discard")	 ? "discarded" :
									 is(action, "limit") ? "backlog" :
														   "cancelled"),
					rows, nrows);
	if (ndone > 0)
		run_on_rows("DELETE FROM outbox.commands WHERE ctid = ANY ($1)", done, ndone);
}

/* Reads the rows of the deliveries, or else their events.  Each is looked up by itself. */
static void
read_rows(Command *commands, int n)
{
	Datum *ids = palloc(sizeof(Datum) * n);
	int64 *seqs = palloc(sizeof(int64) * n);
	int	   nread = 0;

	for (int i = 0; i < n; i++)
	{
		if (commands[i].left_alone)
			continue;
		ids[nread] = Int32GetDatum(commands[i].endpoint_id);
		seqs[nread++] = commands[i].seq;
	}
	outbox_plan_run(
		"SELECT k.status, COALESCE(k.key, e.key), e.xid, k.reason, k.next_attempt_at, k.row"
		" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2))"
		" WITH ORDINALITY c(endpoint_id, seq, place)"
		" LEFT JOIN LATERAL (SELECT p.ctid AS row, * FROM outbox.parked p"
		" WHERE p.endpoint_id = c.endpoint_id AND p.seq = c.seq LIMIT 1) k ON true"
		" LEFT JOIN LATERAL (SELECT outbox.order_key(a.tenant, a.key) AS key,"
		" CASE WHEN a.test_of IS NULL THEN outbox.log_xid(a.epoch, a.xid)"
		" ELSE '3' END AS xid" /* a test is no part of the log */
		" FROM outbox.all_events a"
		" WHERE a.seq = c.seq AND k.seq IS NULL LIMIT 1) e ON true"
		" ORDER BY c.place",
		arg_datum(INT4ARRAYOID, outbox_array(ids, nread, INT4OID)),
		arg_int8s(seqs, nread));
	nread = 0;
	for (int i = 0; i < n; i++)
	{
		Command *c = &commands[i];
		char	*reason;

		if (c->left_alone)
			continue;
		outbox_read_row(nread++, into_text(&c->status), into_text(&c->key),
						into_xid8(&c->xid), into_text(&reason), into_time(&c->due),
						into_tid(&c->row));
		c->blocked = outbox_outcome_reason_blocks(reason);
	}
}

static void
carry_out_alone(void *arg)
{
	Command *c = arg;

	read_rows(c, 1);
	if (c->ep)
		carry_out(c);
	write_rows(c, 1);
}

/* The command failed: notes the error in its row, which stays. */
static void
set_aside(const Command *c, const OutboxStepError *failure)
{
	outbox_query("UPDATE outbox.commands" OUTBOX_SET_ASIDE
				 " WHERE endpoint_id = $4 AND command_id = $1",
				 arg_int8(c->id), arg_text(failure->message),
				 arg_int4(OUTBOX_SET_ASIDE_SECS(outbox_step_was_locked(failure))),
				 arg_int4(c->endpoint_id));
}

/*
 * Finds out when a command that was set aside is tried again.  A command whose time had
 * come when the pass began is left alone, or another worker's.
 */
static void
find_retry(void)
{
	if (outbox_query("SELECT retry_at FROM outbox.commands"
					 " WHERE retry_at > $1 ORDER BY retry_at LIMIT 1",
					 arg_time(outbox_command_pass_begun())) > 0)
		outbox_read_row(0, into_time(&retry_at));
}

void
outbox_operator_commands_failed(void)
{
	careful = true;
	outbox_loop.commands_pending = true;
}

TimestampTz
outbox_operator_commands_due(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (now >= retry_at)
	{
		outbox_loop.commands_pending = true;
		retry_at = DT_NOEND;
	}
	return Min(retry_at, outbox_command_pass_due(now));
}

/*
 * Counts pending deliveries again, if the command may have made the count wrong.  An event that
 * was taken from the window before it was counted is now left out of the count.  And since the
 * command was given, the endpoint may have got settings with which it does not want the event.
 */
static void
count_again(Command *c)
{
	TransactionId settings = (TransactionId) (c->ep->config.row_version >> 32);

	if (!outbox_is_counted(c->ep) ||
		TransactionIdPrecedes((TransactionId) c->asked_by, settings))
		outbox_window_count_again(c->ep, &outbox_loop.head);
}

/* After the commit.  Of the strings only 'key' is still there. */
static void
take_effect(Command *c)
{
	if (c->counts)
	{
		outbox_tally_count(c->ep, c->counts);
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
			count_again(c);
			break;
		case EFFECT_CANCEL_RETRY:
		case EFFECT_CANCEL_FOLLOWER:
			outbox_operator_cancel_parked(c->ep, c->seq, c->key,
										  c->effect == EFFECT_CANCEL_RETRY);
			count_again(c);
			break;
		case EFFECT_SKIP:
			outbox_operator_skip(c->ep, c->seq,
								 outbox_cursor_covers(outbox_is_counted(c->ep) ?
														  &outbox_loop.head :
														  &c->ep->feed->counter,
													  c->xid, c->seq));
			count_again(c);
			break;
		case EFFECT_DUE:
			/* Another session made the row, so the count may have it already. */
			if (outbox_has_all_retries(c->ep))
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

/* True if operators ask for it where a delivery waits or is dead. */
static bool
is_asked(const char *action)
{
	return is(action, "retry") || is(action, "discard") || is(action, "cancel");
}

/* Requests are sent between batches, so a later command is found wherever it is. */
static void
compare(void *arg, const OutboxAsked *other)
{
	Command *c = arg;

	if (other->id < c->id && other->retry_at > GetCurrentTransactionStartTimestamp())
		c->follows = true;
	if (other->id > c->id && is_asked(c->action) && is_asked(other->action) &&
		!is(c->action, other->action))
		c->overruled = true;
}

/* Reads the next commands of this part of the pass, and returns how many. */
static int
read_commands(Command *commands)
{
	OutboxCommandPlace place = outbox_command_pass_place();
	int				   n;

	n = (int) outbox_plan_run(
		"SELECT c.command_id, c.endpoint_id, c.seq, c.action, c.ctid, c.asked_by,"
		" (SELECT s.generation FROM outbox.endpoint_settings s"
		" WHERE s.endpoint_id = c.endpoint_id) FROM outbox.commands c"
		" WHERE " OUTBOX_SHARE_OF_ENDPOINT " = ANY ($1)"
		" AND ROW(c.endpoint_id, c.command_id) > ROW($2, $3) AND c.endpoint_id <= $4"
		" AND (c.retry_at IS NULL OR c.retry_at <= pg_catalog.now())"
		" ORDER BY c.endpoint_id, c.command_id LIMIT " CppAsString2(BATCH),
		arg_datum(INT4ARRAYOID, outbox_shares_array(false)), arg_int4(place.endpoint_id),
		arg_int8(place.passed), arg_int4(place.upto));
	for (int i = 0; i < n; i++)
	{
		Command *c = &commands[i];

		memset(c, 0, sizeof(*c));
		outbox_read_row(i, into_int8(&c->id), into_int4(&c->endpoint_id),
						into_int8(&c->seq), into_text(&c->action), into_tid(&c->place),
						into_xid8(&c->asked_by), into_int8(&c->generation));
		c->ep = outbox_loop_find(c->endpoint_id);
		if (c->ep)
			outbox_busy_add(c->ep);
		outbox_asked_each(c->endpoint_id, c->seq, compare, c);
	}
	return n;
}

/*
 * Passes over endpoints that are left alone.  If that takes long, it returns 0, and 'end' is
 * true only if there are no more.  'begun' is when it began to read these commands.
 */
static int
fetch(Command *commands, bool *end, TimestampTz *begun)
{
	TimestampTz until = GetCurrentTimestamp() + BATCH_TIME;
	int			n;

	do
	{
		*begun = GetCurrentTimestamp();
		n = read_commands(commands);
		outbox_command_pass_read(*begun);
		*end = n == 0 && !outbox_command_pass_next_part();
	} while (n == 0 && !*end && *begun < until);
	return n;
}

/*
 * Returns how many of the commands can be carried out together, or are left alone.  The
 * row read of a delivery is true until a command changes it.  So the batch ends before a
 * command for the same delivery, and before another action.  A probe concerns no
 * delivery, and ends no batch, and neither does a command that is overruled.
 */
static int
together(Command *commands, int n)
{
	const char *action = NULL;

	for (int i = 0; i < n; i++)
	{
		commands[i].left_alone = commands[i].follows ||
			outbox_command_pass_leaves(commands[i].endpoint_id, commands[i].ep,
									   commands[i].generation);
		if (commands[i].left_alone || commands[i].overruled ||
			is(commands[i].action, "probe"))
			continue;
		if (action != NULL && !is(commands[i].action, action))
			return i;
		action = commands[i].action;
		for (int j = 0; j < i; j++)
			if (!commands[j].overruled && commands[j].seq == commands[i].seq &&
				commands[j].endpoint_id == commands[i].endpoint_id)
				return i;
	}
	return n;
}

/*
 * The endpoints owe the time since 'begun', each its part, with the settle that was made for
 * these commands.  Others wait for the whole of it, so a wait for the disk or a processor
 * counts, too, but not a long one.
 */
static void
charge_all(const Command *commands, int n, TimestampTz begun)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		usec = Min(Max(now - begun, 0), BATCH_LONGEST);
	int			done = 0;

	for (int i = 0; i < n; i++)
	{
		OutboxEndpoint *ep = commands[i].ep;

		done += !commands[i].left_alone;
		if (i + 1 < n && commands[i + 1].ep == ep)
			continue;
		if (ep && done > 0)
			outbox_slots_judged(ep, usec * done / n, 0, now);
		done = 0;
	}
}

void
outbox_operator_commands_run(void *settle_begun)
{
	MemoryContext	caller = CurrentMemoryContext;
	Command		   *commands = palloc(sizeof(Command) * BATCH);
	bool			failed = false;
	bool			over;
	int				found;
	int				n;
	TimestampTz		begun;
	TimestampTz		until;
	int64			settled = GetCurrentTimestamp() - *(TimestampTz *) settle_begun;
	OutboxStepError failure;

	outbox_txn_begin_step();
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_KEPT_EVENTS);
	if (outbox_command_pass_begin(GetCurrentTransactionStartTimestamp()))
		retry_at = DT_NOEND;
	found = fetch(commands, &over, &begun);
	n = together(commands, found);
	if (!careful && n > 0)
		read_rows(commands, n);
	until = GetCurrentTimestamp() + BATCH_TIME;
	for (int i = 0; i < n; i++)
	{
		Command *c = &commands[i];

		if (i > 0 && GetCurrentTimestamp() >= until)
		{
			n = i;
			break;
		}
		if (c->left_alone)
			continue;
		if (!careful && c->ep)
			carry_out(c);
		else if (careful && !outbox_step_try_part(carry_out_alone, c, &failure))
		{
			c->effect = EFFECT_NONE;
			c->counts = 0;
			set_aside(c, &failure);
			failed = true;
		}
		if (c->key)
			c->key = MemoryContextStrdup(caller, c->key);
	}
	if (!careful)
		write_rows(commands, n);
	if (n > 0)
		over = n == found && found < BATCH &&
			outbox_command_pass_is_last(commands[n - 1].endpoint_id);
	if (over)
		find_retry();
	careful = failed;
	OUTBOX_CRASH_POINT("command.written");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("command.committed");

	for (int i = 0; i < n; i++)
		take_effect(&commands[i]);
	charge_all(commands, n, begun - settled);
	if (over)
		outbox_command_pass_end();
	else if (n > 0)
		outbox_command_pass_to(commands[n - 1].endpoint_id, commands[n - 1].id,
							   commands[n - 1].ep);
}
