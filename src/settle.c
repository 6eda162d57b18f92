/*
 * settle.c
 *	  Writes outcomes: one transaction for what happened since the last one,
 *	  attempts, parked deliveries and positions together.
 *
 * The transaction commits asynchronously.  Losing it costs duplicates, of what
 * was delivered since, and never an event: a position that is not stored is
 * only read again.  What belongs together is in one transaction, so that no
 * crash can leave a position without the parked rows it relies on.
 */
#include "outbox.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "crash_point.h"
#include "notice.h"
#include "plan.h"
#include "session.h"
#include "settle.h"
#include "shares.h"

/*
 * After so many position rows the other table takes over; sooner in a library
 * that is built to die while that happens.
 */
#ifdef OUTBOX_CRASH_POINTS
#define MAX_POSITION_ROWS 200
#else
#define MAX_POSITION_ROWS 20000
#endif

/* An endpoint that did nothing for so long follows the shared position. */
#define IDLE_AFTER (1 * USECS_PER_SEC)

/* Those that come to rest together do not hold up a settle. */
#define SHARE_AT_ONCE 500

/* When somebody uses the positions: workers do so a few times a second. */
#define COMPACT_AGAIN (200 * 1000)

/*
 * How often the shared position and the time of the log are noted: while
 * events come, and when only other transactions move the snapshot on.
 */
#define SHARED_EVERY (1 * USECS_PER_SEC)
#define SHARED_EVERY_IDLE (60 * USECS_PER_SEC)

typedef struct Attempt
{
	int64		seq;
	TimestampTz started_at;
	pg_uuid_t	event_id;
	int32		endpoint_id;
	int32		attempt;
	float		duration;
	int16		status;
	char	   *error;			/* NULL: none */
	char	   *body;			/* NULL: none */
} Attempt;

static MemoryContext attempt_cxt;
static Attempt *attempts;
static int	nattempts;
static int	max_attempts;
static TimestampTz last_started_at;

static OutboxDatabase *db;
static int32 shared_id;			/* of the position that our idle endpoints share */
static int	share_budget;		/* that may begin to do so with this settle */
static int64 shared_tick;		/* as last written */
static int64 shared_seq;
static TimestampTz shared_at;
static TimestampTz compact_at;	/* not before */

static SPIPlanPtr park_plan;
static SPIPlanPtr unpark_plan;

void
outbox_settle_init(OutboxDatabase *database, int64 last_shared_tick)
{
	db = database;
	shared_id = -(int32) pg_atomic_add_fetch_u64(&db->last_shared, 1);
	shared_tick = last_shared_tick;
	attempt_cxt = AllocSetContextCreate(TopMemoryContext, "outbox attempts",
										ALLOCSET_DEFAULT_SIZES);
	max_attempts = 1024;
	attempts = MemoryContextAlloc(TopMemoryContext, sizeof(Attempt) * max_attempts);
}

/* ------------------------------------------------------------- attempts */

int
outbox_settle_attempts(void)
{
	return nattempts;
}

/* Text that a receiver sent, made fit for this database's encoding. */
static char *
foreign_text(const char *s, size_t len)
{
	MemoryContext old = MemoryContextSwitchTo(attempt_cxt);
	char	   *copy = palloc(len + 1);
	size_t		n = 0;

	/* Whatever is no valid character here becomes a question mark. */
	for (size_t i = 0; i < len;)
	{
		int			l = pg_encoding_verifymbchar(GetDatabaseEncoding(),
												 s + i, (int) (len - i));

		if (s[i] == '\0' || l <= 0)
		{
			copy[n++] = '?';
			i++;
			continue;
		}
		memcpy(copy + n, s + i, l);
		n += l;
		i += l;
	}
	copy[n] = '\0';
	MemoryContextSwitchTo(old);
	return copy;
}

void
outbox_settle_attempt(const OutboxDelivery *d, const OutboxOutcome *o,
					  const char *error, bool keep_body)
{
	bool		good = error == NULL;
	Attempt    *a;

	if (outbox_log_attempts == OUTBOX_LOG_ATTEMPTS_NONE ||
		(outbox_log_attempts == OUTBOX_LOG_ATTEMPTS_FAILURES && good))
		return;
	if (nattempts == max_attempts)
	{
		max_attempts *= 2;
		attempts = repalloc_huge(attempts, sizeof(Attempt) * max_attempts);
	}
	a = &attempts[nattempts++];
	a->seq = d->seq;
	a->event_id = d->event->id;
	a->endpoint_id = d->endpoint->id;
	a->attempt = d->attempts + 1;
	a->duration = (float) o->duration;
	a->status = (int16) o->status;
	a->error = NULL;
	a->body = NULL;

	/* Part of the key: two attempts of this worker never share it. */
	a->started_at = Max(d->started_at, last_started_at + 1);
	last_started_at = a->started_at;
	if (!good)
	{
		a->error = foreign_text(error, strlen(error));
		if (keep_body && o->body_len > 0)
			a->body = foreign_text(o->body, o->body_len);
	}
}

/* --------------------------------------------------------------- append */

/*
 * Slots that are used again by each settle.  Their descriptor is a copy that
 * nobody counts references of; there is one set for each kind of table.
 */
typedef struct Slots
{
	int			n;
	TupleDesc	desc;
	TupleTableSlot **slots;
} Slots;

static Slots attempt_slots;
static Slots position_slots;
static Slots tick_slots;

static void
need_slots(Slots *s, TupleDesc desc, int n)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	if (s->desc == NULL)
		s->desc = CreateTupleDescCopy(desc);
	if (s->n < n)
	{
		s->slots = s->slots ? repalloc_huge(s->slots, sizeof(TupleTableSlot *) * n) :
			palloc(sizeof(TupleTableSlot *) * n);
		while (s->n < n)
			s->slots[s->n++] = MakeTupleTableSlot(s->desc, &TTSOpsHeapTuple);
	}
	MemoryContextSwitchTo(old);
}

/*
 * Appends rows to one of our own tables: one WAL record for a page of them.
 * There are no triggers, rules or foreign rows in the way; the tables are the
 * extension's.
 */
static void
append_rows(Oid table, Slots *s, int nrows, Datum *values, bool *nulls)
{
	Relation	rel = table_open(table, NoLock);
	TupleDesc	desc = RelationGetDescr(rel);
	int			natts = desc->natts;
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *rri = makeNode(ResultRelInfo);

	InitResultRelInfo(rri, rel, 1, NULL, 0);
	ExecOpenIndices(rri, false);
	need_slots(s, desc, nrows);
	for (int i = 0; i < nrows; i++)
	{
		/* The slot owns the tuple, so that nothing copies it once more. */
		ExecStoreHeapTuple(heap_form_tuple(desc, values + (size_t) i * natts,
										   nulls + (size_t) i * natts),
						   s->slots[i], true);
		s->slots[i]->tts_tableOid = table;
	}
	table_multi_insert(rel, s->slots, nrows, GetCurrentCommandId(true), 0, NULL);
	for (int i = 0; i < nrows; i++)
	{
		outbox_insert_index_tuples(rri, s->slots[i], estate);
		ResetPerTupleExprContext(estate);
		ExecClearTuple(s->slots[i]);
	}
	ExecCloseIndices(rri);
	FreeExecutorState(estate);
	table_close(rel, NoLock);
}

#define ATTEMPT_COLUMNS 10

static void
write_attempts(void)
{
	int			piece = (int) pg_atomic_read_u32(&db->attempts_piece);
	Datum	   *values = palloc(sizeof(Datum) * ATTEMPT_COLUMNS * nattempts);
	bool	   *nulls = palloc0(sizeof(bool) * ATTEMPT_COLUMNS * nattempts);

	for (int i = 0; i < nattempts; i++)
	{
		Attempt    *a = &attempts[i];
		Datum	   *v = values + i * ATTEMPT_COLUMNS;
		bool	   *n = nulls + i * ATTEMPT_COLUMNS;

		v[0] = Int64GetDatum(a->seq);
		v[1] = TimestampTzGetDatum(a->started_at);
		v[2] = UUIDPGetDatum(&a->event_id);
		v[3] = Int32GetDatum(a->endpoint_id);
		v[4] = Int32GetDatum(a->attempt);
		v[5] = Float4GetDatum(a->duration);
		v[6] = Int16GetDatum(a->status);
		n[6] = a->status == 0;
		v[7] = Int16GetDatum(piece);
		n[8] = a->error == NULL;
		v[8] = n[8] ? (Datum) 0 : CStringGetTextDatum(a->error);
		n[9] = a->body == NULL;
		v[9] = n[9] ? (Datum) 0 : CStringGetTextDatum(a->body);
	}
	append_rows(outbox_session_table(OUTBOX_TABLE_ATTEMPT_LOG_0 + piece),
				&attempt_slots, nattempts, values, nulls);
}

/* --------------------------------------------------------------- parked */

static Datum
text_datum(const char *s, char *null)
{
	*null = s ? ' ' : 'n';
	return s ? CStringGetTextDatum(s) : (Datum) 0;
}

static void
park(OutboxEndpoint *ep, OutboxDelivery *d)
{
	static const char *const status[] = {
		[OUTBOX_VERDICT_RETRY] = "retrying",
		[OUTBOX_VERDICT_BLOCKED] = "blocked",
		[OUTBOX_VERDICT_DEAD] = "dead",
	};
	char		nulls[14];
	Datum		args[13];

	memset(nulls, ' ', sizeof(nulls));
	args[0] = Int32GetDatum(ep->id);
	args[1] = Int64GetDatum(d->seq);
	args[2] = UUIDPGetDatum(&d->event->id);
	args[3] = text_datum(d->event->key, &nulls[3]);
	args[4] = CStringGetTextDatum(status[d->verdict]);
	args[5] = text_datum(d->verdict == OUTBOX_VERDICT_DEAD ? d->reason : NULL, &nulls[5]);
	args[6] = Int32GetDatum(d->attempts);
	args[7] = TimestampTzGetDatum(d->first_attempt_at);
	if (d->first_attempt_at == 0)
		nulls[7] = 'n';
	args[8] = TimestampTzGetDatum(d->next_attempt_at);
	if (d->verdict != OUTBOX_VERDICT_RETRY)
		nulls[8] = 'n';
	args[9] = Int32GetDatum(d->last_status);
	if (d->last_status == 0)
		nulls[9] = 'n';
	args[10] = text_datum(d->error, &nulls[10]);
	args[11] = Int16GetDatum(d->redelivery);
	args[12] = Int64GetDatum(d->group);
	if (d->group == 0 || d->verdict == OUTBOX_VERDICT_BLOCKED)
		nulls[12] = 'n';
	nulls[13] = '\0';
	outbox_plan_run(&park_plan,
		"INSERT INTO outbox.parked AS p (endpoint_id, seq, event_id, key, status,"
		" reason, attempts, first_attempt_at, next_attempt_at, last_status_code,"
		" last_error, redelivery, parked_at, batch)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, pg_catalog.now(), $13)"
		" ON CONFLICT (endpoint_id, seq) DO UPDATE SET status = $5, reason = $6,"
		" attempts = $7, first_attempt_at = $8, next_attempt_at = $9,"
		" last_status_code = $10, last_error = $11, redelivery = $12, batch = $13",
		13, (Oid[]) {INT4OID, INT8OID, UUIDOID, TEXTOID, TEXTOID, TEXTOID, INT4OID,
		TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, TEXTOID, INT2OID, INT8OID}, args, nulls);
}

static void
unpark(OutboxEndpoint *ep, OutboxDelivery *d)
{
	Datum		args[2] = {Int32GetDatum(ep->id), Int64GetDatum(d->seq)};

	outbox_plan_run(&unpark_plan,
		"DELETE FROM outbox.parked WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
		" AND seq OPERATOR(pg_catalog.=) $2",
		2, (Oid[]) {INT4OID, INT8OID}, args, NULL);
}

static void
write_parked(OutboxEndpoint *ep)
{
	dlist_iter	iter;

	dlist_foreach(iter, &ep->settling)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

		if (d->error)
		{
			char	   *clean = foreign_text(d->error, strlen(d->error));

			strlcpy(d->error, clean, strlen(d->error) + 1);
		}
		if (d->verdict == OUTBOX_VERDICT_DELIVERED)
			unpark(ep, d);
		else
			park(ep, d);
	}
}

/* ------------------------------------------------------------ positions */

#define POSITION_COLUMNS 17
#define POSITION_NAMES \
	"number, endpoint_id, shared, generation, done_tick, done, done_seq_low," \
	" under_tick, under, under_seq_low, under_seq_high, last_seq, pending," \
	" delivered, failed_attempts, settled_at"

typedef struct Positions
{
	int			piece;
	int			n;
	int			max;
	Datum	   *values;
	bool	   *nulls;
	TimestampTz now;
} Positions;

static void
begin_positions(Positions *p)
{
	p->piece = (int) pg_atomic_read_u32(&db->positions_piece);
	p->n = 0;
	p->max = 64;
	p->values = palloc(sizeof(Datum) * POSITION_COLUMNS * p->max);
	p->nulls = palloc(sizeof(bool) * POSITION_COLUMNS * p->max);
	p->now = GetCurrentTimestamp();
}

static Datum
snapshot_datum(const OutboxTick *tick)
{
	return DirectFunctionCall1(pg_snapshot_in,
							   CStringGetDatum(outbox_tick_snapshot(tick)));
}

/* 'ep' NULL: the position that our idle endpoints share. */
static void
add_position(Positions *p, OutboxEndpoint *ep, const OutboxCursor *c)
{
	Datum	   *v;
	bool	   *n;

	if (p->n == p->max)
	{
		p->max *= 2;
		p->values = repalloc_huge(p->values, sizeof(Datum) * POSITION_COLUMNS * p->max);
		p->nulls = repalloc_huge(p->nulls, sizeof(bool) * POSITION_COLUMNS * p->max);
	}
	v = p->values + (size_t) p->n * POSITION_COLUMNS;
	n = p->nulls + (size_t) p->n * POSITION_COLUMNS;
	p->n++;
	memset(n, 0, sizeof(bool) * POSITION_COLUMNS);

	v[0] = Int16GetDatum(p->piece);
	v[1] = Int64GetDatum((int64) pg_atomic_add_fetch_u64(&db->last_position, 1));
	v[2] = Int32GetDatum(ep ? ep->id : shared_id);
	v[3] = Int32GetDatum(shared_id);
	n[3] = ep == NULL || !ep->shared;
	v[4] = Int64GetDatum(ep ? ep->generation : 0);
	v[5] = Int64GetDatum(c->done->number);
	v[6] = snapshot_datum(c->done);
	v[7] = Int64GetDatum(c->done->seq_low);
	n[8] = n[9] = n[10] = n[11] = c->under == NULL;
	if (c->under)
	{
		v[8] = Int64GetDatum(c->under->number);
		v[9] = snapshot_datum(c->under);
		v[10] = Int64GetDatum(c->under->seq_low);
		v[11] = Int64GetDatum(c->under->seq_high);
	}
	v[12] = Int64GetDatum(c->last_seq);
	n[13] = ep == NULL || ep->nheld == 0;
	if (!n[13])
	{
		Datum	   *elems = palloc(sizeof(Datum) * ep->nheld);
		dlist_iter	iter;
		int			k = 0;

		dlist_foreach(iter, &ep->held)
			elems[k++] = Int64GetDatum(dlist_container(OutboxDelivery, held_node,
													   iter.cur)->seq);
		v[13] = PointerGetDatum(construct_array(elems, k, INT8OID, 8,
												FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	}
	v[14] = Int64GetDatum(ep ? ep->delivered : 0);
	v[15] = Int64GetDatum(ep ? ep->failed_attempts : 0);
	v[16] = TimestampTzGetDatum(p->now);
}

static void
write_positions(Positions *p)
{
	if (p->n > 0)
		append_rows(outbox_session_table(OUTBOX_TABLE_POSITIONS_0 + p->piece),
					&position_slots, p->n, p->values, p->nulls);
	pg_atomic_fetch_add_u32(&db->position_rows, p->n);
}

/* Which moment of the log had which time. */
static void
write_tick(const OutboxTick *tick, int piece)
{
	Datum		values[6];
	bool		nulls[6] = {0};

	values[0] = Int16GetDatum(piece);
	values[1] = Int64GetDatum(tick->number);
	values[2] = TimestampTzGetDatum(tick->taken_at);
	values[3] = snapshot_datum(tick);
	values[4] = Int64GetDatum(tick->seq_low);
	values[5] = Int64GetDatum(tick->seq_high);
	append_rows(outbox_session_table(OUTBOX_TABLE_TICKS_0 + piece), &tick_slots, 1, values,
				nulls);
}

/* The subscription holds from here on: an event is judged by its place. */
static void
write_subscription(OutboxEndpoint *ep, const OutboxCursor *c)
{
	Datum	   *topics = palloc(sizeof(Datum) * Max(ep->npatterns, 1));
	Datum		args[7];
	char		nulls[] = "       ";

	for (int i = 0; i < ep->npatterns; i++)
		topics[i] = CStringGetTextDatum(ep->patterns[i]);
	args[0] = Int32GetDatum(ep->id);
	args[1] = Int64GetDatum(ep->version);
	args[2] = PointerGetDatum(construct_array(topics, ep->npatterns, TEXTOID, -1,
											  false, TYPALIGN_INT));
	args[3] = snapshot_datum(c->done);
	if (c->under)
		args[4] = snapshot_datum(c->under);
	else
		nulls[4] = 'n';
	args[5] = Int64GetDatum(c->last_seq);
	args[6] = PointerGetDatum(ep->filter);
	if (ep->filter == NULL)
		nulls[6] = 'n';
	outbox_query("INSERT INTO outbox.subscriptions"
				 " (endpoint_id, version, topics, done, under, last_seq, filter)"
				 " VALUES ($1, $2, $3, $4, $5, $6, $7)"
				 " ON CONFLICT (endpoint_id, version) DO NOTHING",
				 7, (Oid[]) {INT4OID, INT8OID, TEXTARRAYOID,
				 PG_SNAPSHOTOID, PG_SNAPSHOTOID, INT8OID, JSONPATHOID},
				 args, nulls);
	ep->stored_version = ep->version;
}

/*
 * The receiver asked to be disabled.  Somebody who alters the endpoint at this
 * moment holds its row: then it is written with the next settle.
 */
static void
write_state(OutboxEndpoint *ep)
{
	Datum		args[3] = {Int32GetDatum(ep->id), CStringGetTextDatum(ep->reason),
		TimestampTzGetDatum(ep->state_since)};

	if (outbox_query("UPDATE outbox.endpoint_settings SET state = 'disabled',"
					 " reason = $2, state_since = $3 WHERE endpoint_id"
					 " OPERATOR(pg_catalog.=) (SELECT endpoint_id"
					 " FROM outbox.endpoint_settings WHERE endpoint_id"
					 " OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED)",
					 3, (Oid[]) {INT4OID, TEXTOID, TIMESTAMPTZOID}, args, NULL) > 0)
		ep->state_dirty = false;
}

/* --------------------------------------------------------------- settle */

/*
 * One that is to be left, or read anew, stays where it is: the shared position
 * moves on without it.
 */
static bool
may_share(OutboxEndpoint *ep, TimestampTz now)
{
	return ep->attached && !ep->shared && !ep->recreate && ep->window_count == 0 &&
		ep->nheld == 0 && ep->nsettling == 0 && share_budget > 0 &&
		now - ep->last_active_at > IDLE_AFTER;
}

bool
outbox_settle(dlist_head *busy, const OutboxCursor *head, bool final)
{
	Positions	p;
	dlist_iter	iter;
	bool		share = false;

	if (!outbox_begin(true))
		return false;
	OUTBOX_CRASH_POINT("settle.begin");

	/* Who is parked here gets his row now: others rely on finding it. */
	dlist_foreach(iter, busy)
		outbox_endpoint_park_followers(dlist_container(OutboxEndpoint, busy_node,
													   iter.cur));

	begin_positions(&p);
	share_budget = SHARE_AT_ONCE;
	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, busy_node, iter.cur);
		const OutboxCursor *frontier;
		bool		disabled;

		if (ep->dropped)
			continue;
		frontier = outbox_endpoint_frontier(ep, head);
		write_parked(ep);
		OUTBOX_CRASH_POINT("settle.parked");
		disabled = ep->state_dirty;
		if (disabled)
			write_state(ep);
		outbox_notice_write(ep, disabled && !ep->state_dirty);
		if (ep->stored_version != ep->version)
			write_subscription(ep, frontier);
		OUTBOX_CRASH_POINT("settle.subscribed");

		/*
		 * The shared position moves on with the head: only who has nothing left
		 * before it may follow.
		 */
		if (ep->shared && (ep->window_count > 0 || ep->nheld > 0 ||
						   ep->nsettling > 0 || !ep->attached))
			ep->dirty = true;
		if (may_share(ep, p.now))
		{
			ep->shared = true;
			ep->dirty = true;
			share = true;
			share_budget--;
		}
		else if (ep->dirty)
			ep->shared = false;
		if (ep->dirty)
			add_position(&p, ep, frontier);
	}

	if (share || outbox_settle_wants_head(head, p.now) ||
		(head->done->number != shared_tick &&
		 (final || p.now - shared_at > SHARED_EVERY_IDLE)))
	{
		add_position(&p, NULL, head);
		if (head->done->number != shared_tick && outbox_serves_database())
			write_tick(head->done, (int) pg_atomic_read_u32(&db->piece));
		shared_tick = head->done->number;
		shared_seq = head->done->seq_high;
		shared_at = p.now;
	}
	write_positions(&p);
	OUTBOX_CRASH_POINT("settle.positions");
	outbox_catalog_write_gone();
	if (nattempts > 0)
		write_attempts();

	OUTBOX_CRASH_POINT("settle.written");
	outbox_commit();
	OUTBOX_CRASH_POINT("settle.committed");

	nattempts = 0;
	MemoryContextReset(attempt_cxt);
	dlist_foreach(iter, busy)
		outbox_endpoint_settled(dlist_container(OutboxEndpoint, busy_node, iter.cur));
	return true;
}

bool
outbox_settle_wants_head(const OutboxCursor *head, TimestampTz now)
{
	return head->done->number != shared_tick && head->done->seq_high != shared_seq &&
		now - shared_at > SHARED_EVERY;
}

bool
outbox_settle_wants_compaction(TimestampTz now)
{
	return outbox_serves_database() && now >= compact_at &&
		pg_atomic_read_u32(&db->position_rows) > MAX_POSITION_ROWS;
}

/*
 * From the tables, because other workers' positions are there as well.  What
 * nobody follows any more, and what dropped endpoints left, does not count.
 */
bool
outbox_settle_compact(void)
{
	int			was = (int) pg_atomic_read_u32(&db->positions_piece);
	int			other = 1 - was;
	Datum		args[1] = {Int16GetDatum(other)};
	uint64		n;

	if (!outbox_begin(true))
		return false;
	if (!ConditionalLockRelationOid(outbox_session_table(OUTBOX_TABLE_POSITIONS_0 + was),
									AccessExclusiveLock) ||
		!ConditionalLockRelationOid(outbox_session_table(OUTBOX_TABLE_POSITIONS_0 + other),
									AccessExclusiveLock))
	{
		/* Somebody reads the positions, or writes them: later. */
		compact_at = GetCurrentTimestamp() + COMPACT_AGAIN;
		outbox_give_up();
		return false;
	}
	n = outbox_query("WITH newest AS MATERIALIZED (SELECT DISTINCT ON (endpoint_id) *"
					 " FROM outbox.positions ORDER BY endpoint_id DESC, number DESC)"
					 " INSERT INTO outbox.positions SELECT $1, " POSITION_NAMES
					 " FROM newest p WHERE EXISTS (SELECT 1 FROM outbox.endpoint_settings s"
					 " WHERE s.endpoint_id OPERATOR(pg_catalog.=) p.endpoint_id)"
					 " OR p.endpoint_id OPERATOR(pg_catalog.=) ANY"
					 " (ARRAY(SELECT DISTINCT f.shared FROM newest f))"
					 " ON CONFLICT DO NOTHING",
					 1, (Oid[]) {INT2OID}, args, NULL);
	OUTBOX_CRASH_POINT("compact.written");
	outbox_query(was == 0 ? "TRUNCATE outbox.positions_0" :
				 "TRUNCATE outbox.positions_1", 0, NULL, NULL, NULL);
	OUTBOX_CRASH_POINT("compact.truncated");
	outbox_commit();
	OUTBOX_CRASH_POINT("compact.committed");

	pg_atomic_write_u32(&db->positions_piece, (uint32) other);
	pg_atomic_write_u32(&db->position_rows, (uint32) n);
	return true;
}
