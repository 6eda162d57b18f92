/*
 * leftovers.c
 *	  Owns the removal of rows that nothing needs any more since settings were changed.
 *
 * These are the rows of dropped endpoints, previous secrets whose time is over, and rows of
 * outbox.endpoint_changes that all workers have seen.  When an endpoint is moved to another
 * place in the log, they are also its rows of events that it will read again.  Only after
 * that is it loaded.
 *
 * An endpoint may have millions of rows in outbox.parked, and the worker does nothing else
 * while it deletes them.  So they are deleted in slices, each a short transaction, in the
 * order of their numbers, of one endpoint after another.  A worker that dies has forgotten
 * which endpoints were dropped.  The next one searches for their rows.
 */
#include "base/outbox.h"

#include "nodes/pg_list.h"

#include "base/query.h"
#include "log/kept.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "worker/leftovers.h"
#include "worker/roster.h"

/* The limits of a slice: rows, and the time (µs) after which no other one is begun. */
#define SLICE_ROWS 500
#define SLICE_TIME (5 * 1000)

/* Between slices the worker does other work for REST times as long as they took. */
#define REST 2

/* Wait after a lock was not free (µs). */
#define AGAIN_AFTER (200 * 1000)

/* µs between two times that rows of outbox.endpoint_changes are deleted. */
#define FORGET_CHANGES_EVERY USECS_PER_SEC

/* Endpoints that one slice of the search looks at. */
#define SEARCH_ENDPOINTS 200

/* An endpoint that was dropped, or moved. */
typedef struct Leftover
{
	int32 id;
	int64 generation; /* to which it was moved (0: it was dropped) */
	char *start;	  /* a snapshot: it was moved to this place */
	int64 from;		  /* its rows up to this number are done */
	bool  done;		  /* true if all are, and it may be loaded */
} Leftover;

static List		  *dropped;
static List		  *moved;
static bool		   released; /* true if rows of endpoints on 'dropped' were deleted */
static bool		   secrets;
static bool		   searching;
static int32	   searched; /* endpoints up to this one were looked at */
static TimestampTz changes_at = DT_NOEND;
static TimestampTz forgotten_at;
static uint64	   changes_gone; /* rows of transactions below it are deleted */
static TimestampTz dropped_at;	 /* 'dropped' rests until then */
static TimestampTz moved_at;	 /* the same for moved endpoints */

static Leftover *
add(List **list, int32 id)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Leftover	 *l = palloc0(sizeof(Leftover));

	l->id = id;
	l->from = PG_INT64_MIN;
	*list = lappend(*list, l);
	MemoryContextSwitchTo(old);
	return l;
}

static void
drop(List **list, Leftover *l)
{
	*list = list_delete_ptr(*list, l);
	if (l->start)
		pfree(l->start);
	pfree(l);
}

static Leftover *
find_moved(int32 id)
{
	const ListCell *cell;

	foreach (cell, moved)
		if (((Leftover *) lfirst(cell))->id == id)
			return lfirst(cell);
	return NULL;
}

void
outbox_leftovers_dropped(int32 id)
{
	(void) add(&dropped, id);
}

void
outbox_leftovers_secret(void)
{
	secrets = true;
}

void
outbox_leftovers_search(void)
{
	searching = true;
	searched = PG_INT32_MIN;
}

/*
 * A moved endpoint whose rows are all deleted is loaded by a reload, unless loading it is
 * on hold.  A moved endpoint that was not loaded was dropped.  Its next slice notices
 * that.
 */
void
outbox_leftovers_reloaded(void)
{
	const ListCell *cell;

	foreach (cell, moved)
	{
		Leftover *l = lfirst(cell);

		l->done = l->done && outbox_step_held(OUTBOX_STEP_RELOAD, l->id);
	}
	if (outbox_serves_database())
		changes_at = Max(forgotten_at + FORGET_CHANGES_EVERY, GetCurrentTimestamp());
}

bool
outbox_leftovers_seeking(int32 id)
{
	return find_moved(id) != NULL;
}

bool
outbox_leftovers_may_load(int32 id, int64 generation, const OutboxTick *start)
{
	Leftover *l = find_moved(id);

	if (l && l->generation == generation)
	{
		if (!l->done)
			return false;
		drop(&moved, l);
		return true;
	}
	if (l)
		drop(&moved, l); /* it was moved again */
	if (outbox_query("SELECT 1 FROM outbox.parked p"
					 " WHERE p.endpoint_id = $1 LIMIT 1",
					 arg_int4(id)) == 0)
		return true;
	l = add(&moved, id);
	l->generation = generation;
	l->start = MemoryContextStrdup(TopMemoryContext, outbox_tick_snapshot(start));
	return false;
}

/* -------------------------------------------------------------- dropped */

#define ORPHAN \
	" NOT EXISTS (SELECT 1 FROM outbox.endpoint_settings s" \
	" WHERE s.endpoint_id = p.endpoint_id)"

#define SLICE \
	"WITH slice AS MATERIALIZED (SELECT p.seq, p.status FROM outbox.parked p" \
	" WHERE p.endpoint_id = $1 AND p.seq > $2 ORDER BY p.seq LIMIT $3)"

/* Deletes the few rows of a dropped endpoint, or (0) of all of them. */
static void
delete_orphans(int32 id)
{
	static const char *const tables[] = {"subscriptions", "endpoint_secrets", "replays"};

	for (size_t i = 0; i < lengthof(tables); i++)
		outbox_query(psprintf("DELETE FROM outbox.%s p WHERE" ORPHAN "%s", tables[i],
							  id ? psprintf(" AND p.endpoint_id = %d", id) : ""));
}

/*
 * Deletes a slice of a dropped endpoint's rows.  Returns their number, and sets 'from'.
 */
static int64
slice_of_dropped(const Leftover *l, int64 *from)
{
	int64 n;

	if (l->from == PG_INT64_MIN)
		delete_orphans(l->id);
	outbox_query(SLICE ", gone AS (DELETE FROM outbox.parked p USING slice c"
					   " WHERE p.endpoint_id = $1"
					   " AND p.seq = c.seq AND" ORPHAN ")"
					   " SELECT pg_catalog.count(*), pg_catalog.max(c.seq) FROM slice c",
				 arg_int4(l->id), arg_int8(l->from), arg_int8(SLICE_ROWS));
	outbox_read_row(0, into_int8(&n), into_int8(from));
	return n;
}

/*
 * Finds dropped endpoints that have rows left.  The index says which endpoints have rows,
 * however many these are.  Returns the last endpoint that it has looked at, or 0 at the
 * end.
 */
static int32
search(List **found)
{
	uint64 n;
	int32  id = 0;
	bool   orphan;

	if (searched == PG_INT32_MIN)
		delete_orphans(0);
#define NEXT(from) \
	"(SELECT q.endpoint_id FROM outbox.parked q" \
	" WHERE q.endpoint_id > " from " ORDER BY q.endpoint_id LIMIT 1)"
	n = outbox_query(
		"WITH RECURSIVE e(id, n) AS (SELECT " NEXT("$1") ", 1 UNION ALL SELECT " NEXT(
			"e.id") ", e.n + 1 FROM e"
					" WHERE e.id IS NOT NULL AND e.n < $2)"
					" SELECT p.endpoint_id, " ORPHAN
					" FROM (SELECT id, n FROM e WHERE id IS NOT NULL)"
					" p(endpoint_id, n) ORDER BY p.n",
		arg_int4(searched), arg_int4(SEARCH_ENDPOINTS));
#undef NEXT
	for (uint64 i = 0; i < n; i++)
	{
		outbox_read_row(i, into_int4(&id), into_bool(&orphan));
		if (orphan)
			*found = lappend_int(*found, id);
	}
	return n < SEARCH_ENDPOINTS ? 0 : id;
}

/*
 * Deletes previous secrets whose time is over, because nothing is signed with them any
 * more.  Rows that another transaction is changing are skipped, so that nothing waits for
 * a lock.
 */
static void
forget_previous_secrets(void)
{
	outbox_query(
		"UPDATE outbox.endpoint_secrets SET previous = NULL, previous_until = NULL"
		" WHERE part = 0 AND endpoint_id = ANY (ARRAY("
		"SELECT k.endpoint_id FROM outbox.endpoint_secrets k"
		" WHERE k.previous_until <= pg_catalog.clock_timestamp()"
		" FOR UPDATE SKIP LOCKED))");
}

/*
 * Deletes the changes that all workers of the database have seen.  A snapshot may keep rows
 * that were deleted before, so they are not read again.  Returns below which xid none is left.
 */
static uint64
forget_changes(void)
{
	uint64 below = PG_UINT64_MAX;

	for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
	{
		uint64 seen = pg_atomic_read_u64(&outbox_db->workers[w].seen_changes);

		if (seen != 0)
			below = Min(below, seen);
	}
	outbox_query("DELETE FROM outbox.endpoint_changes WHERE xid >= $1 AND xid < $2",
				 arg_xid8(FullTransactionIdFromU64(changes_gone)),
				 arg_xid8(FullTransactionIdFromU64(below)));
	return Max(changes_gone, below);
}

/* They take turns: each waits for its own rows, and not for the millions of another one. */
static void
end_turn(List **list, Leftover *l)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	*list = lappend(list_delete_ptr(*list, l), l);
	MemoryContextSwitchTo(old);
}

/* The first one whose rows may be deleted now.  NULL: none. */
static Leftover *
first_of(OutboxStep step, const List *list)
{
	const ListCell *cell;

	foreach (cell, list)
	{
		Leftover *l = lfirst(cell);

		if (!l->done && !outbox_step_held(step, l->id))
			return l;
	}
	return NULL;
}

static bool
begin(TimestampTz *again)
{
	if (!outbox_txn_begin(true))
	{
		*again = GetCurrentTimestamp() + AGAIN_AFTER;
		return false;
	}
	outbox_lock_indexes(OUTBOX_TABLE_PARKED, OUTBOX_TABLE_PARKED);
	return true;
}

/* Deletes rows of endpoints that are not served, in one transaction. */
static void
run_small(TimestampTz now)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext old;
	List		 *found = NIL;
	List		 *copy;
	ListCell	 *cell;
	int32		  last = 0;
	uint64		  gone = changes_gone;
	bool		  changes = now >= changes_at && outbox_serves_database();

	if (!begin(&dropped_at))
		return;
	if (secrets)
		forget_previous_secrets();
	if (changes)
		gone = forget_changes();
	if (searching)
		last = search(&found);
	old = MemoryContextSwitchTo(caller);
	copy = list_copy(found); /* for after the commit */
	MemoryContextSwitchTo(old);
	outbox_txn_commit();
	secrets = false;
	changes_gone = gone;
	if (changes)
		forgotten_at = now;
	if (now >= changes_at)
		changes_at = DT_NOEND;
	foreach (cell, copy)
		outbox_leftovers_dropped(lfirst_int(cell));
	list_free(copy);
	searching = searching && last != 0;
	searched = last;
}

/* ---------------------------------------------------------------- moved */

/*
 * Deletes a slice of the rows of events that are beyond the new place of the endpoint.
 * Cancelled rows stay.  Returns the number of rows, and sets 'from'.  The endpoint
 * may have been dropped or moved again meanwhile: then nothing is deleted, and 'valid' is
 * false.
 */
static int64
slice_of_moved(const Leftover *l, int64 *from, bool *valid)
{
	int64 n;

#define VALID \
	" EXISTS (SELECT 1 FROM outbox.endpoint_settings s" \
	" WHERE s.endpoint_id = $1 AND s.generation = $5)"
	outbox_query(SLICE
				 ", again AS MATERIALIZED (SELECT c.seq FROM slice c"
				 " WHERE c.status <> 'cancelled'"
				 " AND EXISTS (SELECT 1 FROM outbox.events e"
				 " WHERE e.seq = c.seq AND NOT"
				 " pg_catalog.pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid),"
				 " $4::pg_catalog.pg_snapshot))),"
				 " gone AS (DELETE FROM outbox.parked p USING again a"
				 " WHERE p.endpoint_id = $1"
				 " AND p.seq = a.seq AND" VALID ")"
				 " SELECT pg_catalog.count(*), pg_catalog.max(c.seq)," VALID
				 " FROM slice c",
				 arg_int4(l->id), arg_int8(l->from), arg_int8(SLICE_ROWS),
				 arg_text(l->start), arg_int8(l->generation));
#undef VALID
	outbox_read_row(0, into_int8(&n), into_int8(from), into_bool(valid));
	return n;
}

/* The worker that such an endpoint goes to begins anew with its rows, before it loads it. */
void
outbox_leftovers_leave(void)
{
	ListCell *cell;

	foreach (cell, moved)
	{
		Leftover *l = lfirst(cell);

		if (outbox_serves_endpoint(l->id))
			continue;
		moved = foreach_delete_current(moved, cell);
		pfree(l->start);
		pfree(l);
	}
}

/* ---------------------------------------------------------------- steps */

static void
run_slices(OutboxStep step, List **list, TimestampTz *rests_until, TimestampTz now)
{
	Leftover *l;

	while ((l = first_of(step, *list)) != NULL)
	{
		int32 id = l->id;
		bool  valid = true;
		int64 from;
		int64 rows;

		if (!begin(rests_until))
			return;
		outbox_step_blame(id);
		rows = list == &moved ? slice_of_moved(l, &from, &valid) :
								slice_of_dropped(l, &from);
		outbox_txn_commit();
		outbox_step_passed(step, id);
		outbox_step_blame(0);
		l->from = from;
		l->done = rows < SLICE_ROWS;
		end_turn(list, l);
		if (list == &moved && (l->done || !valid))
			outbox_roster_load_later(id);
		if (!valid)
			outbox_leftovers_dropped(id);
		released = released || (list == &dropped && rows > 0);
		if (list == &moved ? !valid : l->done)
			drop(list, l);
		if (list == &dropped && released && first_of(step, dropped) == NULL)
		{
			released = false;
			outbox_kept_released();
		}
		if (GetCurrentTimestamp() - now >= SLICE_TIME)
			break;
	}
	*rests_until = outbox_step_rest(now, REST);
}

void
outbox_leftovers_run_dropped(void *arg)
{
	TimestampTz now = *(TimestampTz *) arg;

	if (secrets || searching || now >= changes_at)
		run_small(now);
	run_slices(OUTBOX_STEP_LEFTOVERS, &dropped, &dropped_at, now);
}

void
outbox_leftovers_run_moved(void *now)
{
	run_slices(OUTBOX_STEP_SEEK, &moved, &moved_at, *(TimestampTz *) now);
}

TimestampTz
outbox_leftovers_dropped_due(void)
{
	if (secrets || searching || first_of(OUTBOX_STEP_LEFTOVERS, dropped))
		return dropped_at;
	return Max(changes_at, dropped_at);
}

TimestampTz
outbox_leftovers_moved_due(void)
{
	return first_of(OUTBOX_STEP_SEEK, moved) ? moved_at : DT_NOEND;
}
