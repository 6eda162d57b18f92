/*
 * replay.c
 *	  Owns replays: a part of the log is read again for one endpoint, a page at
 *	  a time, and its events are parked as due retries.
 *
 * From then on a replayed delivery is like any other one: it takes a slot, and its
 * place in its key's lane.  How far a replay has come is stored together with the
 * rows that it made, so that it continues after a crash.  The endpoint's own
 * position is not changed.  An endpoint has one replay at a time, in the order in which
 * they were asked for.  They take turns.
 */
#include "base/outbox.h"

#include "base/crash_point.h"
#include "base/memory.h"
#include "base/names.h"
#include "base/query.h"
#include "endpoint/parking.h"
#include "endpoint/retries.h"
#include "endpoint/subscribers.h"
#include "log/kept.h"
#include "log/retention.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "worker/backlog_limit.h"
#include "worker/busy.h"
#include "worker/judge.h"
#include "worker/loop.h"
#include "worker/replay.h"
#include "worker/roster.h"
#include "worker/slots.h"

#define PAGE_ROWS 128
#define PAGE_BYTES (1024 * 1024)

/* A replay waits while so many rows of its endpoint wait for an attempt. */
#define ENOUGH_DUE 256

/* µs after which no other page is begun in a step. */
#define RUN_TIME (20 * 1000)

/* A replay that is under way: the oldest of its endpoint.  The others wait in the table. */
typedef struct Replay
{
	int64 id;
	int32 endpoint_id;
	bool  waits; /* true until the list is read again after a reload, because the
				  * endpoint is not loaded */
} Replay;

static Replay *replays; /* NULL: none */
static int	   nreplays;
static int	   next_replay; /* whose turn it is */
static size_t  replays_account;

/* A row that the present step has made. */
typedef struct MadeRow
{
	OutboxEndpoint *ep;
	int64			seq;
	char		   *key;
	TimestampTz		due;
} MadeRow;

static List			*made;
static MemoryContext made_cxt; /* lasts until after the commit */

/* The columns of a replay's row that are read for a page. */
typedef struct ReplayPage
{
	OutboxEndpoint *ep;
	TimestampTz		from_time;
	TimestampTz		to_time;
	int				npatterns; /* 0: any topic */
	char		  **patterns;
	OutboxCursor	cursor;
	OutboxTick	   *target;
	OutboxLogQuery	query;
	int				nread;
	int				n;
	int64			seqs[PAGE_ROWS];
} ReplayPage;

/*
 * A replay that ended before the retention is of no more interest.  Some are deleted
 * each time that the list is read, which is once or more for each replay: so they do
 * not pile up.
 */
#define DELETED_AT_ONCE 100

static void
delete_old_replays(void)
{
	TimestampTz begins = GetCurrentTimestamp() -
		(int64) outbox_retention_of_events() * USECS_PER_SEC;

	outbox_query("DELETE FROM outbox.replays WHERE replay_id = ANY (ARRAY("
				 "SELECT r.replay_id FROM outbox.replays r"
				 " WHERE r.finished_at < $1"
				 " ORDER BY r.finished_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
				 arg_time(begins), arg_int8(DELETED_AT_ONCE));
}

/*
 * A customer may ask for many replays, each with many patterns.  So the list has one of
 * each endpoint, and its row is read for each page.
 */
static void
read_replays(void)
{
	uint64 n;

	delete_old_replays();
	n = outbox_query("SELECT pg_catalog.min(replay_id), endpoint_id"
					 " FROM outbox.replays WHERE finished_at IS NULL"
					 " GROUP BY endpoint_id");
	if (replays)
		pfree(replays);
	replays = n == 0 ? NULL :
					   MemoryContextAllocZero(TopMemoryContext, sizeof(Replay) * n);
	nreplays = (int) n;
	outbox_memory_account(&replays_account, sizeof(Replay) * n);
	for (int i = 0; i < nreplays; i++)
		outbox_read_row(i, into_int8(&replays[i].id), into_int4(&replays[i].endpoint_id));
	outbox_loop.replays_changed = false;
}

/* Rows of the endpoint that wait for an attempt, and are not in flight. */
static int64
rows_waiting(OutboxEndpoint *ep)
{
	int64 n = ep->table->rows[OUTBOX_ROW_RETRYING];

	for (OutboxDelivery *d = NULL;
		 (d = outbox_delivery_next(&ep->queue->in_flight, d)) != NULL;)
		n -= d->parked && d->row_retries;
	return n;
}

static bool
can_go_on(const Replay *r)
{
	OutboxEndpoint *ep = outbox_loop_find(r->endpoint_id);

	if (!outbox_serves_endpoint(r->endpoint_id) ||
		outbox_step_held(OUTBOX_STEP_REPLAY, r->endpoint_id))
		return false;
	if (ep == NULL)
		return !r->waits;
	return !ep->member.recreate && !ep->member.dropped && !ep->status.unstorable &&
		!outbox_judge_later(ep) &&
		((outbox_judge_owes_until(ep) == 0 && outbox_has_all_rows(ep) &&
		  rows_waiting(ep) < ENOUGH_DUE) ||
		 outbox_backlog_limit_hurries(ep));
}

TimestampTz
outbox_replays_due(void)
{
	if (outbox_loop.replays_changed)
		return 0;
	for (int i = 0; i < nreplays; i++)
		if (can_go_on(&replays[i]))
			return 0;
	return DT_NOEND;
}

static void *
replay_wants(void *arg, const char *topic, size_t len, OutboxRow *row)
{
	ReplayPage *page = arg;
	bool		included;

	page->nread++;
	if (page->npatterns > 0 &&
		!outbox_topic_in_list(topic, len, page->patterns, page->npatterns))
		return NULL;
	if (outbox_row_forgotten(row) || !outbox_subscribes(page->ep, topic, len, row))
		return NULL;
	included = outbox_judge_now(page->ep, row) == OUTBOX_FILTER_YES;
	if (outbox_judge_later(page->ep))
		page->query.max_bytes = 0; /* the page ends with this event */
	return included ? arg : NULL;
}

static void
replay_takes(void *arg, void *wanted, OutboxEvent *event)
{
	ReplayPage *page = arg;

	if (event->created_at >= page->from_time && event->created_at <= page->to_time)
		page->seqs[page->n++] = event->seq;
}

/*
 * Parks the events of a page that are before the endpoint's position and not parked
 * already.  Returns how many events of the page are sent: these, and the events that wait
 * anyway, as outbox.replay() has counted them.
 */
static int64
park_page(ReplayPage *page)
{
	MemoryContext old;
	int64		  dead;

	dead = (int64) outbox_query("SELECT 1 FROM outbox.parked"
								" WHERE endpoint_id = $1 AND seq = ANY ($2)"
								" AND status = ANY ('{dead,cancelled}')",
								arg_int4(page->ep->id), arg_int8s(page->seqs, page->n));
	outbox_query("INSERT INTO outbox.parked (endpoint_id, seq, event_id, key,"
				 " status, attempts, next_attempt_at, redelivery, parked_at)"
				 " SELECT p.endpoint_id, e.seq, e.id, outbox.order_key(e.tenant, e.key),"
				 " 'retrying', 0,"
				 " pg_catalog.now(), 2, pg_catalog.now()"
				 " FROM outbox.endpoint_positions p JOIN outbox.events e"
				 " ON e.seq = ANY ($2)"
				 " WHERE p.endpoint_id = $1 AND NOT outbox.is_pending(e.seq, p.pending)"
				 " AND (pg_catalog.pg_visible_in_snapshot("
				 "outbox.log_xid(e.epoch, e.xid), p.read) OR (p.reading IS NOT NULL"
				 " AND e.seq <= p.last_seq AND pg_catalog.pg_visible_in_snapshot("
				 "outbox.log_xid(e.epoch, e.xid), p.reading)))"
				 " ON CONFLICT (endpoint_id, seq) DO NOTHING"
				 " RETURNING seq, key, next_attempt_at",
				 arg_int4(page->ep->id), arg_int8s(page->seqs, page->n));
	old = MemoryContextSwitchTo(made_cxt);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MadeRow *row = palloc(sizeof(MadeRow));

		row->ep = page->ep;
		outbox_read_row(i, into_int8(&row->seq), into_text(&row->key),
						into_time(&row->due));
		made = lappend(made, row);
	}
	MemoryContextSwitchTo(old);
	outbox_kept_add(page->seqs, page->n);
	return page->n - dead;
}

static void
finish(int64 id)
{
	outbox_query("UPDATE outbox.replays SET finished_at = pg_catalog.now()"
				 " WHERE replay_id = $1",
				 arg_int8(id));
}

static void
store_progress(int64 id, const ReplayPage *page, int64 events)
{
	outbox_query("UPDATE outbox.replays SET read = $2::pg_catalog.pg_snapshot,"
				 " read_seq_low = $3, last_seq = $4, reading = $5,"
				 " events = events + $6"
				 " WHERE replay_id = $1",
				 arg_int8(id), arg_text(outbox_tick_snapshot(page->cursor.read)),
				 arg_int8(page->cursor.read->seq_low), arg_int8(page->cursor.last_seq),
				 arg_bool(page->cursor.reading != NULL), arg_int8(events));
}

/*
 * Reads where a replay is.  False: it was cancelled, or its endpoint dropped.  While a session
 * has its row locked, as one that cancels it does, the replay is on hold.
 */
static bool
read_place(const Replay *r, ReplayPage *page)
{
	ArrayType  *topics;
	char	   *snapshot, *target;
	int64		seq_low, last_seq, seq_high;
	bool		reading, ended;
	OutboxTick *read;

	if (outbox_query("SELECT from_time, to_time, topics, read::pg_catalog.text,"
					 " read_seq_low, last_seq, target::pg_catalog.text, target_seq_high,"
					 " reading, finished_at IS NOT NULL"
					 " FROM outbox.replays WHERE replay_id = $1 FOR UPDATE SKIP LOCKED",
					 arg_int8(r->id)) == 0)
	{
		outbox_step_hold_locked(OUTBOX_STEP_REPLAY, r->endpoint_id, "a replay");
		return false;
	}
	outbox_read_row(0, into_time(&page->from_time), into_time(&page->to_time),
					into_varlena(TEXTARRAYOID, &topics), into_text(&snapshot),
					into_int8(&seq_low), into_int8(&last_seq), into_text(&target),
					into_int8(&seq_high), into_bool(&reading), into_bool(&ended));
	if (ended)
		return false;
	if (topics)
		page->patterns = outbox_text_array(topics, &page->npatterns);
	read = outbox_tick_make(0, page->from_time, seq_low, seq_low, snapshot);
	page->target = outbox_tick_make(0, page->to_time, seq_low, seq_high, target);
	outbox_cursor_set(&page->cursor, read, reading ? page->target : NULL, last_seq);
	outbox_tick_unref(read);
	return true;
}

static void
read_page(int64 id, ReplayPage *page)
{
	XLogRecPtr unused = 0;

	page->query = (OutboxLogQuery){.want = replay_wants,
								   .take = replay_takes,
								   .arg = page,
								   .max_rows = PAGE_ROWS,
								   .max_bytes = PAGE_BYTES,
								   .tenant = outbox_tenant_name(page->ep->tenant)};
	outbox_log_read(&page->cursor, page->target, &page->query, &unused);
	store_progress(id, page, page->n > 0 ? park_page(page) : 0);
	OUTBOX_CRASH_POINT("replay.parked");
	if (page->cursor.reading == NULL)
		finish(id);
}

/*
 * The time of a page is a debt, as that of a filter is, but for its part of the events that are
 * parked: these have to be sent before the replay goes on.
 */
static void
charge_page(const ReplayPage *page, int nparked, TimestampTz begun)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		usec = Max(now - begun, 0);

	usec -= usec * Min(nparked, page->nread) / Max(page->nread, 1);
	outbox_slots_judged(page->ep, outbox_flow_debt(usec), 0, now);
}

/* Reads the next page.  True: the list is to be read again. */
static bool
go_on(Replay *r)
{
	ReplayPage	  page = {.ep = outbox_loop_find(r->endpoint_id)};
	TimestampTz	  begun = GetCurrentTimestamp();
	int			  nmade = list_length(made);
	volatile bool ended;

	if (page.ep == NULL)
	{
		r->waits = outbox_roster_expects(r->endpoint_id);
		if (!r->waits)
			finish(r->id); /* the endpoint was dropped */
		return !r->waits;
	}
	outbox_busy_add(page.ep);
	if (!read_place(r, &page))
		return true;
	PG_TRY();
	{
		read_page(r->id, &page);
		ended = page.cursor.reading == NULL;
	}
	PG_FINALLY();
	{
		outbox_cursor_clear(&page.cursor);
		outbox_tick_unref(page.target);
	}
	PG_END_TRY();
	charge_page(&page, list_length(made) - nmade, begun);
	outbox_step_passed(OUTBOX_STEP_REPLAY, r->endpoint_id);
	return ended;
}

void
outbox_replays_run(void *now)
{
	TimestampTz		begun = GetCurrentTimestamp();
	const ListCell *cell;

	made = NIL;
	made_cxt = CurrentMemoryContext;
	outbox_txn_begin_step();
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_EVENTS_2);
	if (outbox_loop.replays_changed)
		read_replays();
	for (int n = nreplays; n > 0 && GetCurrentTimestamp() - begun < RUN_TIME; n--)
	{
		Replay *r = &replays[next_replay++ % nreplays];

		if (!can_go_on(r))
			continue;
		outbox_step_blame(r->endpoint_id);
		if (go_on(r))
			outbox_loop.replays_changed = true; /* the list is read again */
	}
	if (nreplays > 0)
		next_replay %= nreplays;
	outbox_step_blame(0);
	OUTBOX_CRASH_POINT("replay.stored");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("replay.committed");
	foreach (cell, made)
	{
		const MadeRow *row = lfirst(cell);

		outbox_parking_count_row(row->ep, row->seq, OUTBOX_ROW_RETRYING, 1);
		outbox_retries_add_parked(row->ep, row->seq, row->due, row->key, 0);
	}
}
