/*
 * forget.c
 *	  Owns how a request of outbox.forget() is carried out: rows are emptied in
 *	  slices, pass by pass, until a whole pass finds nothing more.
 *
 * A pass begins when no worker has a copy of these events left: each reads the list
 * of outbox.forgotten, loads endpoints again that have such deliveries, and settles
 * (forgotten.c, reload.c).  So nothing of them is written behind a pass, except by an
 * endpoint's worker that it asks for: only that one changes rows of outbox.parked.  It is
 * asked by commands.
 *
 * Whether a row is done can be seen from the row.  So after a crash, or an error, a pass
 * begins anew.  An event that is emptied keeps its row, its number and its id: positions
 * and views do not change.
 */
#include "base/outbox.h"

#include "base/query.h"
#include "endpoint/operator.h"
#include "endpoint/window.h"
#include "log/forgotten.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/wakeup.h"
#include "store/attempts.h"
#include "worker/busy.h"
#include "worker/forget.h"
#include "worker/loop.h"
#include "worker/roster.h"

/* The limits of a slice: rows that are examined, and the time (µs) after which it ends. */
#define SLICE_ROWS 500
#define SLICE_TIME (10 * 1000)

/* Events that are emptied before the time is checked; more while that is quick. */
#define AT_ONCE 16

/* Between two slices the worker does other work for REST times as long. */
#define REST 2

/* µs: the wait for other workers, for locks and for commands. */
#define AGAIN_AFTER (100 * 1000)

typedef enum Stage
{
	STAGE_EVENTS,	 /* with their attempts and parked deliveries, by seq */
	STAGE_SCHEDULED, /* by id */
	STAGE_DEDUP,	 /* by key */
	STAGE_END
} Stage;

/* The rows that a slice has removed: columns of outbox.forgotten. */
typedef struct Removed
{
	int64 events;
	int64 attempts;
	int64 deliveries;
	int64 scheduled;
	int64 dedup_keys;
} Removed;

/* How far a pass is. */
typedef struct Pass
{
	int64	  id; /* of the request (0: there is none) */
	Stage	  stage;
	bool	  changed; /* true if it has found something */
	int64	  seq;
	pg_uuid_t scheduled;
	char	  topic[OUTBOX_MAX_TOPIC + 1]; /* of the last key */
	char	  dedup_key[OUTBOX_MAX_DEDUP_KEY + 1];
	char	  tenant[OUTBOX_MAX_TENANT + 1];
} Pass;

static Pass		   pass;
static TimestampTz next_at;
static TimestampTz report_at;

/* ------------------------------------------------------- copies in memory */

/*
 * outbox.forget() was called: no event that it concerns may stay in memory.  Events that
 * were read are read again, and so are events that are counted.  An endpoint that has
 * deliveries of the tenant is loaded again.
 */
static void
forget_copies(const OutboxForget *f)
{
	for (int i = 0; i < outbox_loop.roster.n; i++)
	{
		OutboxEndpoint *ep = outbox_loop.roster.endpoints[i];

		if (ep->tenant && strcmp(ep->tenant->name, f->tenant) != 0)
			continue;
		if (outbox_operator_has_tenant(ep, f->tenant))
			outbox_roster_load_again(ep);
		else if (!outbox_is_attached(ep) || ep->feed->window_count > 0)
		{
			outbox_window_drop(ep, &outbox_loop.head);
			outbox_window_count_again(ep, &outbox_loop.head);
			ep->place.dirty = true;
			outbox_busy_add(ep);
		}
	}
}

void
outbox_forget_copies(void)
{
	int					n;
	const OutboxForget *list = outbox_forgotten_list(&n);

	for (int i = 0; i < n; i++)
		if (list[i].id > outbox_loop.forgotten)
		{
			forget_copies(&list[i]);
			outbox_loop.forgotten = list[i].id;
		}
}

TimestampTz
outbox_forget_report_time(void)
{
	return pg_atomic_read_u64(&outbox_self->forgot) >= (uint64) outbox_loop.forgotten ||
			outbox_loop.roster.recreating ?
		DT_NOEND :
		report_at;
}

void
outbox_forget_report(void *now)
{
	report_at = *(TimestampTz *) now + AGAIN_AFTER;
	if (outbox_attempts_wait())
		return;
	pg_atomic_write_u64(&outbox_self->forgot, (uint64) outbox_loop.forgotten);
	outbox_workers_wake(outbox_db, true);
}

/* True if no worker has a copy left of an event that this request concerns. */
static bool
copies_are_gone(const OutboxForget *f)
{
	for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
		if (pg_atomic_read_u64(&outbox_db->workers[w].seen_changes) != 0 &&
			pg_atomic_read_u64(&outbox_db->workers[w].forgot) < (uint64) f->id)
			return false;
	return true;
}

/* ---------------------------------------------------------------- slices */

/*
 * $1 is the tenant, $2 the time before which events were emitted, $3 the subject of the
 * statement, $4 the key (NULL: any).
 */
#define ARGS(f, subject) \
	arg_text((f)->tenant), arg_text((f)->snapshot), subject, arg_text((f)->key)

/* A row of another log is not sent, and is nobody's new event. */
#define BEFORE \
	" AND COALESCE(pg_catalog.pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid)," \
	" $2::pg_catalog.pg_snapshot), true)"

#define OF_KEY " AND ($4 IS NULL OR e.key = $4)"

#define EMPTY \
	" SET key = NULL, headers = NULL, payload = NULL, body = NULL, content_type = NULL" \
	" WHERE e.seq = ANY ($3)" \
	" AND e.tenant = $1" OF_KEY \
	" AND (e.payload IS NOT NULL OR e.body IS NOT NULL)" BEFORE

/* The events of $3 that are forgotten, by this call or another: the key is gone. */
#define EMPTIED \
	"(SELECT e.seq FROM outbox.all_events e" \
	" WHERE e.seq = ANY ($3) AND e.payload IS NULL AND e.body IS NULL AND e.tenant = $1)"

/* Empties these events, in the log and beside it, and asks for their deliveries. */
static void
empty_events(const OutboxForget *f, const int64 *seqs, int n, Removed *r)
{
	OutboxArg array = arg_int8s(seqs, n);
	int64	  kept;
	int64	  commands;

	r->events += outbox_plan_run("UPDATE outbox.events e" EMPTY, ARGS(f, array));
	outbox_plan_run("WITH u AS (UPDATE outbox.kept_events e" EMPTY
					" RETURNING e.seq, e.epoch)"
					" SELECT pg_catalog.count(*) FROM u WHERE NOT EXISTS"
					" (SELECT 1 FROM outbox.events l WHERE l.seq = u.seq"
					" AND l.epoch = u.epoch)",
					ARGS(f, array));
	outbox_read_row(0, into_int8(&kept));
	r->events += kept;
	r->attempts += outbox_plan_run(
		"UPDATE outbox.attempt_log a SET response_body = NULL,"
		" response_headers = NULL,"
		" error = CASE WHEN a.error IS NOT NULL THEN 'forgotten' END"
		" WHERE a.seq = ANY (ARRAY" EMPTIED ")"
		" AND (a.response_body IS NOT NULL OR a.response_headers IS NOT NULL"
		" OR a.error <> 'forgotten')",
		ARGS(f, array));
	commands =
		outbox_plan_run("INSERT INTO outbox.commands (endpoint_id, action, seq)"
						" SELECT k.endpoint_id, 'forget', k.seq FROM outbox.parked k"
						" JOIN outbox.endpoint_settings s USING (endpoint_id)"
						" WHERE k.seq = ANY (ARRAY" EMPTIED ")"
						" AND (k.status <> 'cancelled' OR k.key IS NOT NULL"
						" OR k.last_error IS NOT NULL)"
						" ORDER BY k.seq",
						ARGS(f, array));
	if (commands > 0)
		outbox_mark_changed(); /* the workers of these endpoints are woken */
	r->deliveries += commands;
}

/* True if there are no more. */
static bool
slice_of_events(const OutboxForget *f, Removed *r)
{
	static int	at_once = AT_ONCE;
	TimestampTz begun = GetCurrentTimestamp();
	int64		seqs[SLICE_ROWS];
	int			n;
	int			m;

	outbox_plan_run("SELECT q.seq FROM ((SELECT e.seq FROM outbox.events e"
					" WHERE e.tenant = $1 AND e.seq > $3"
					" ORDER BY e.seq LIMIT " CppAsString2(
						SLICE_ROWS) ") UNION"
									" (SELECT e.seq FROM outbox.kept_events e"
									" WHERE e.tenant = $1 AND e.seq > $3"
									" ORDER BY e.seq LIMIT " CppAsString2(
										SLICE_ROWS) ")) q"
													" ORDER BY q.seq LIMIT " CppAsString2(
														SLICE_ROWS),
					ARGS(f, arg_int8(pass.seq)));
	n = (int) SPI_processed;
	for (int i = 0; i < n; i++)
		outbox_read_row(i, into_int8(&seqs[i]));
	for (int i = 0; i < n; i += m)
	{
		TimestampTz from = GetCurrentTimestamp();

		if (i > 0 && from - begun >= SLICE_TIME)
			return false;
		m = Min(at_once, n - i);
		empty_events(f, &seqs[i], m, r);
		pass.seq = seqs[i + m - 1];
		if (GetCurrentTimestamp() - from < SLICE_TIME / 4)
			at_once = Min(at_once * 2, SLICE_ROWS);
		else
			at_once = AT_ONCE;
	}
	return n < SLICE_ROWS || pass.seq >= f->upto;
}

/*
 * Removes scheduled events with their deduplication keys.  A row that another transaction
 * has locked, to cancel it, is left for the next pass.
 */
static bool
slice_of_scheduled(const OutboxForget *f, Removed *r)
{
	int64 gone, due, found, keys;

	outbox_plan_run(
		"WITH slice AS MATERIALIZED (SELECT e.id, e.topic, e.dedup_key, e.key, e.tenant, e.epoch, e.xid"
		" FROM outbox.scheduled e WHERE e.id > $3"
		" ORDER BY e.id LIMIT " CppAsString2(
			SLICE_ROWS) "),"
						" due AS MATERIALIZED (SELECT e.* FROM slice e"
						" WHERE e.tenant = $1" OF_KEY BEFORE "),"
						" keys AS MATERIALIZED (SELECT k.topic, k.dedup_key, k.tenant, k.event_id"
						" FROM outbox.dedup k JOIN due d ON k.topic = d.topic"
						" AND k.dedup_key = d.dedup_key AND k.tenant = d.tenant"
						" AND k.event_id = d.id FOR UPDATE OF k SKIP LOCKED),"
						" free AS MATERIALIZED (SELECT s.id FROM outbox.scheduled s WHERE"
						" s.id = ANY (ARRAY(SELECT d.id FROM due d"
						" WHERE EXISTS (SELECT 1 FROM keys k WHERE k.event_id = d.id)"
						" OR NOT EXISTS (SELECT 1 FROM outbox.dedup k WHERE k.topic = d.topic"
						" AND k.dedup_key = d.dedup_key AND k.tenant = d.tenant"
						" AND k.event_id = d.id)))"
						" FOR UPDATE SKIP LOCKED),"
						" unique_again AS (DELETE FROM outbox.dedup k USING keys d"
						" WHERE k.topic = d.topic AND k.dedup_key = d.dedup_key"
						" AND k.tenant = d.tenant"
						" AND k.event_id IN (SELECT f.id FROM free f) RETURNING 1),"
						" gone AS (DELETE FROM outbox.scheduled s USING free d"
						" WHERE s.id = d.id RETURNING 1)"
						" SELECT (SELECT pg_catalog.count(*) FROM gone),"
						" (SELECT pg_catalog.count(*) FROM due), (SELECT pg_catalog.count(*) FROM slice),"
						" (SELECT pg_catalog.count(*) FROM unique_again),"
						" (SELECT s.id FROM slice s ORDER BY s.id DESC LIMIT 1)",
		ARGS(f, arg_datum(UUIDOID, UUIDPGetDatum(&pass.scheduled))));
	outbox_read_row(0, into_int8(&gone), into_int8(&due), into_int8(&found),
					into_int8(&keys), into_uuid(&pass.scheduled));
	r->scheduled += gone;
	r->dedup_keys += keys;
	pass.changed = pass.changed || due > 0;
	return found < SLICE_ROWS;
}

/*
 * Removes deduplication keys.  A key whose event is there, and not forgotten, is that of
 * a new event.  A key whose event is gone is new if it was claimed later.  Where the
 * events of one key are forgotten, it stays: nothing says whose it is.
 */
static bool
slice_of_dedup(const OutboxForget *f, Removed *r)
{
	int64 gone, due, found;
	char *topic, *key, *tenant;

	outbox_plan_run(
		"WITH slice AS MATERIALIZED (SELECT d.* FROM outbox.dedup d"
		" WHERE ROW(d.topic, d.dedup_key, d.tenant) > ROW($2, $3, $4)"
		" ORDER BY d.topic, d.dedup_key, d.tenant LIMIT " CppAsString2(
			SLICE_ROWS) "),"
						" due AS MATERIALIZED (SELECT d.* FROM slice d"
						" WHERE d.tenant = $1 AND d.created_at <= (SELECT f.requested_at"
						" FROM outbox.forgotten f WHERE f.forget_id = $5)"
						" AND CASE WHEN $6 THEN EXISTS (SELECT 1 FROM outbox.all_events e"
						" WHERE e.id = d.event_id AND e.forgotten)"
						" ELSE NOT EXISTS (SELECT 1 FROM outbox.all_events e"
						" WHERE e.id = d.event_id AND NOT e.forgotten)"
						" AND NOT EXISTS (SELECT 1 FROM outbox.scheduled s"
						" WHERE s.id = d.event_id) END),"
						" free AS MATERIALIZED (SELECT k.topic, k.dedup_key, k.tenant"
						" FROM outbox.dedup k JOIN due d ON k.topic = d.topic"
						" AND k.dedup_key = d.dedup_key AND k.tenant = d.tenant"
						" AND k.event_id = d.event_id"
						" FOR UPDATE OF k SKIP LOCKED),"
						" gone AS (DELETE FROM outbox.dedup k USING free d"
						" WHERE k.topic = d.topic AND k.dedup_key = d.dedup_key"
						" AND k.tenant = d.tenant RETURNING 1)"
						" SELECT (SELECT pg_catalog.count(*) FROM gone),"
						" (SELECT pg_catalog.count(*) FROM due), (SELECT pg_catalog.count(*) FROM slice),"
						" l.topic, l.dedup_key, l.tenant FROM (SELECT) one LEFT JOIN LATERAL"
						" (SELECT s.topic, s.dedup_key, s.tenant FROM slice s"
						" ORDER BY s.topic DESC, s.dedup_key DESC, s.tenant DESC"
						" LIMIT 1) l ON true",
		arg_text(f->tenant), arg_text(pass.topic), arg_text(pass.dedup_key),
		arg_text(pass.tenant), arg_int8(f->id), arg_bool(f->key != NULL));
	outbox_read_row(0, into_int8(&gone), into_int8(&due), into_int8(&found),
					into_text(&topic), into_text(&key), into_text(&tenant));
	r->dedup_keys += gone;
	pass.changed = pass.changed || due > 0;
	if (found < SLICE_ROWS)
		return true;
	strlcpy(pass.topic, topic, sizeof(pass.topic));
	strlcpy(pass.dedup_key, key, sizeof(pass.dedup_key));
	strlcpy(pass.tenant, tenant, sizeof(pass.tenant));
	return false;
}

static bool
commands_wait(void)
{
	return outbox_query("SELECT 1 FROM outbox.commands"
						" WHERE action = 'forget' LIMIT 1") > 0;
}

static void
count(const OutboxForget *f, const Removed *r)
{
	if (r->events + r->attempts + r->deliveries + r->scheduled + r->dedup_keys == 0)
		return;
	pass.changed = true;
	outbox_query("UPDATE outbox.forgotten SET events = events + $2,"
				 " attempts = attempts + $3,"
				 " deliveries = deliveries + $4,"
				 " scheduled = scheduled + $5,"
				 " dedup_keys = dedup_keys + $6"
				 " WHERE forget_id = $1",
				 arg_int8(f->id), arg_int8(r->events), arg_int8(r->attempts),
				 arg_int8(r->deliveries), arg_int8(r->scheduled),
				 arg_int8(r->dedup_keys));
}

/*
 * The workers read the list again, in which it is no more.  The servers that this one
 * follows still need the key (outbox.forget_at_sources()).
 */
static void
complete(const OutboxForget *f)
{
	outbox_query(
		"UPDATE outbox.forgotten SET complete_at = pg_catalog.clock_timestamp(),"
		" key = CASE WHEN sources <> '{}' THEN key"
		" WHEN key IS NOT NULL THEN 'forgotten' END,"
		" files = (SELECT pg_catalog.jsonb_object_agg(c.relation, c.file)"
		" FROM outbox.content_files c WHERE key IS NOT NULL OR c.relation <> 'forgotten')"
		" WHERE forget_id = $1 AND complete_at IS NULL",
		arg_int8(f->id));
	outbox_mark_changed();
}

static void
begin_pass(int64 id)
{
	memset(&pass, 0, sizeof(pass));
	pass.id = id;
}

/* Carries out the next slice.  Returns when the one after it may begin. */
static TimestampTz
go_on(const OutboxForget *f, TimestampTz begun)
{
	Removed r = {0};

	switch (pass.stage)
	{
		case STAGE_EVENTS:
			pass.stage += slice_of_events(f, &r);
			break;
		case STAGE_SCHEDULED:
			pass.stage += slice_of_scheduled(f, &r);
			break;
		case STAGE_DEDUP:
			pass.stage += slice_of_dedup(f, &r);
			break;
		case STAGE_END:
			if (commands_wait())
				return begun + AGAIN_AFTER;
			if (!pass.changed)
			{
				complete(f);
				begin_pass(0);
				return begun + AGAIN_AFTER;
			}
			begin_pass(f->id);
			return begun + AGAIN_AFTER;
	}
	count(f, &r);
	return outbox_step_rest(begun, REST);
}

void
outbox_forget_run(void *arg)
{
	TimestampTz			now = *(TimestampTz *) arg;
	int					n;
	const OutboxForget *list = outbox_forgotten_list(&n);
	TimestampTz			again;

	next_at = now + AGAIN_AFTER;
	if (n == 0 || !copies_are_gone(&list[0]) || !outbox_txn_begin(true))
		return;
	if (!outbox_lock_log() ||
		!outbox_lock_if_free(OUTBOX_TABLE_SCHEDULED, OUTBOX_TABLE_FORGOTTEN,
							 RowExclusiveLock))
	{
		outbox_txn_abort();
		return;
	}
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_KEPT_EVENTS);
	if (pass.id != list[0].id)
		begin_pass(list[0].id);
	again = go_on(&list[0], now);
	outbox_txn_commit();
	next_at = again;
}

/* Memory may be ahead of the tables. */
void
outbox_forget_failed(void)
{
	begin_pass(0);
}

TimestampTz
outbox_forget_next_time(void)
{
	int n;

	(void) outbox_forgotten_list(&n);
	return n == 0 ? DT_NOEND : next_at;
}
