/*
 * positions.c
 *	  Owns outbox.positions: how far each endpoint has read the log, as it is stored
 *	  and as it is read again.
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"

#include "base/query.h"
#include "base/seq_set.h"
#include "base/version.h"
#include "endpoint/lane.h"
#include "endpoint/queue.h"
#include "endpoint/tally.h"
#include "log/event_number.h"
#include "log/tables.h"
#include "log/transaction.h"
#include "store/positions.h"

#define ROW_BYTES 160 /* of a row, about */

static int32 shared_id;		/* the id of the row that the idle endpoints of this
									* worker share */
static int32 newest_shared; /* of the row that was written last */

void
outbox_positions_init(void)
{
	shared_id = -(int32) pg_atomic_add_fetch_u64(&outbox_db->last_shared, 1);
}

/* -------------------------------------------------------------- reading */

/* A cursor as it is stored, in the order of OUTBOX_CURSOR_COLUMNS. */
typedef struct StoredCursor
{
	int64		read_tick;
	char	   *read; /* snapshots as text (NULL: none) */
	int64		read_seq_low;
	int64		reading_tick;
	char	   *reading;
	int64		reading_seq_low;
	int64		reading_seq_high;
	int64		last_seq;
	TimestampTz settled_at;
} StoredCursor;

#define INTO_CURSOR(c) \
	into_int8(&(c).read_tick), into_text(&(c).read), into_int8(&(c).read_seq_low), \
		into_int8(&(c).reading_tick), into_text(&(c).reading), \
		into_int8(&(c).reading_seq_low), into_int8(&(c).reading_seq_high), \
		into_int8(&(c).last_seq), into_time(&(c).settled_at)

static void
make_cursor(const StoredCursor *c, OutboxCursor *cursor)
{
	OutboxTick *read = outbox_tick_make(c->read_tick, c->settled_at, c->read_seq_low,
										c->read_seq_low, c->read);
	OutboxTick *reading = NULL;

	if (c->reading)
		reading = outbox_tick_make(c->reading_tick, c->settled_at, c->reading_seq_low,
								   c->reading_seq_high, c->reading);
	outbox_cursor_set(cursor, read, reading, c->last_seq);
	outbox_tick_unref(read);
	outbox_tick_unref(reading);
}

/* An array may lack numbers at its end, which are 0 then.  NULL: all are. */
static void
read_counters(ArrayType *array, int64 *counters)
{
	Datum *elems;
	bool  *nulls;
	int	   n;

	memset(counters, 0, sizeof(int64) * OUTBOX_COUNTERS);
	if (array == NULL)
		return;
	deconstruct_array(array, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &elems, &nulls,
					  &n);
	for (int c = 0; c < Min(n, OUTBOX_COUNTERS); c++)
		counters[c] = nulls[c] ? 0 : DatumGetInt64(elems[c]);
}

static void
refuse_pending(void)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_DATA_CORRUPTED),
		 errmsg("what a position in outbox.positions names as pending is not readable")));
}

/* Far more than can be in flight */
#define PENDING_MAX 10000000

/* Reads a 'pending' of outbox.positions. */
static int64 *
read_pending(const bytea *pending, int *n)
{
	OutboxSeqReader r = outbox_seq_set_open(VARDATA_ANY(pending),
											VARSIZE_ANY_EXHDR(pending));
	int				max = 64;
	int64		   *seqs = palloc(sizeof(int64) * max);

	for (*n = 0; outbox_seq_set_next(&r, &seqs[*n]);)
	{
		CHECK_FOR_INTERRUPTS();
		if (++*n > PENDING_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("more than %d events are pending", PENDING_MAX),
					 errhint("No position names so many.")));
		outbox_room(seqs, *n, max, CurrentMemoryContext);
	}
	if (r.broken)
		refuse_pending();
	return seqs;
}

/* For SQL. */
OUTBOX_FUNCTION(outbox_pending_seqs_1_0, 1)
{
	int	   n;
	int64 *seqs = read_pending(PG_GETARG_BYTEA_PP(0), &n);

	PG_RETURN_DATUM(outbox_int8_array(seqs, n));
}

/* The same for one number: an event of a view is looked up so. */
OUTBOX_FUNCTION(outbox_is_pending_1_0, 2)
{
	int64			seq = PG_GETARG_INT64(0);
	bytea		   *pending;
	OutboxSeqReader r;
	int64			next;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_BOOL(false);
	pending = PG_GETARG_BYTEA_PP(1);
	r = outbox_seq_set_open(VARDATA_ANY(pending), VARSIZE_ANY_EXHDR(pending));
	while (outbox_seq_set_next(&r, &next))
	{
		CHECK_FOR_INTERRUPTS();
		if (next >= seq)
			PG_RETURN_BOOL(next == seq);
	}
	if (r.broken)
		refuse_pending();
	PG_RETURN_BOOL(false);
}

bool
outbox_positions_read_totals(int64 *totals)
{
	ArrayType *counters;

	memset(totals, 0, sizeof(int64) * OUTBOX_COUNTERS);
	if (outbox_query("SELECT counters FROM outbox.positions"
					 " WHERE endpoint_id = 0"
					 " ORDER BY number DESC LIMIT 1") == 0)
		return false;
	outbox_read_row(0, into_varlena(INT8ARRAYOID, &counters));
	read_counters(counters, totals);
	return true;
}

/*
 * The shared row that was read last.  All idle endpoints of a worker follow the same one,
 * and it is read once for them.
 */
static int32		last_read; /* its id (0: none) */
static OutboxCursor last_cursor;

void
outbox_positions_read_again(void)
{
	last_read = 0;
	outbox_cursor_clear(&last_cursor);
}

static void
read_shared(int32 id, OutboxCursor *cursor)
{
	StoredCursor c;

	if (id != last_read)
	{
		outbox_positions_read_again();
		if (outbox_plan_run("SELECT " OUTBOX_CURSOR_COLUMNS " FROM outbox.positions"
							" WHERE endpoint_id = $1"
							" ORDER BY number DESC LIMIT 1",
							arg_int4(id)) == 0)
			elog(ERROR, "shared position %d is missing", id);
		outbox_read_row(0, INTO_CURSOR(c));
		make_cursor(&c, &last_cursor);
		last_read = id;
	}
	outbox_cursor_copy(cursor, &last_cursor);
}

bool
outbox_position_read(OutboxColumns row, OutboxPosition *p)
{
	StoredCursor c;
	bytea		*pending;
	ArrayType	*counters;

	*p = (OutboxPosition){0};
	outbox_read_columns(row, INTO_CURSOR(c), into_int8(&p->generation),
						into_int4(&p->follows), into_varlena(BYTEAOID, &pending),
						into_int8(&p->delivered), into_int8(&p->failed_attempts),
						into_varlena(INT8ARRAYOID, &counters),
						into_time(&p->failing_since), into_bool(&p->failing_told),
						into_time(&p->state_since), into_int4(&p->probes));
	if (c.read == NULL)
	{
		p->probes = -1;
		return false;
	}
	if (pending)
		p->pending = read_pending(pending, &p->npending);
	read_counters(counters, p->counters);
	p->settled_at = c.settled_at;
	if (p->follows == 0)
		make_cursor(&c, &p->cursor);
	else
		read_shared(p->follows, &p->cursor);
	return true;
}

bool
outbox_position_newest_shared(OutboxCursor *cursor)
{
	StoredCursor c;

	if (outbox_query(OUTBOX_NEWEST_POSITIONS(
			"endpoint_id < 0") " SELECT " OUTBOX_CURSOR_COLUMNS
							   ", endpoint_id FROM newest"
							   " ORDER BY number DESC LIMIT 1") == 0)
		return false;
	outbox_read_row(0, INTO_CURSOR(c), into_int4(&newest_shared));
	make_cursor(&c, cursor);
	return true;
}

void
outbox_positions_continue_shared(OutboxEndpoint **all, int n)
{
	for (int i = 0; i < n; i++)
		if (all[i]->place.follows != 0 && all[i]->place.follows == newest_shared)
		{
			shared_id = newest_shared;
			all[i]->place.shared = all[i]->place.was_shared = true;
		}
}

/*
 * The table that was left last has rows, too, but few newest ones, of workers that wrote
 * before this was known.
 */
#define TABLE_IN_USE \
	OUTBOX_NEWEST_POSITIONS("true") \
	" SELECT piece, pg_catalog.pg_relation_size(CASE piece WHEN 0" \
	" THEN 'outbox.positions_0' ELSE 'outbox.positions_1' END::pg_catalog.regclass)" \
	" / " CppAsString2(ROW_BYTES) " FROM newest GROUP BY piece" \
								  " ORDER BY pg_catalog.count(*) DESC LIMIT 1"

void
outbox_positions_in_use(void)
{
	int16 piece;
	int64 rows;

	if (outbox_query(TABLE_IN_USE) == 0)
		return;
	outbox_read_row(0, into_int2(&piece), into_int8(&rows));
	pg_atomic_write_u32(&outbox_db->positions_piece, piece);
	pg_atomic_write_u32(&outbox_db->position_rows, (uint32) rows);
}

void
outbox_positions_raise_numbers(void)
{
	int64		tick, position, shared;
	int32		clock;
	TimestampTz taken_at;

	outbox_query(OUTBOX_NEWEST_POSITIONS(
		"true") " SELECT GREATEST("
				"(SELECT pg_catalog.max(GREATEST(read_tick, reading_tick)) FROM newest),"
				"(SELECT pg_catalog.max(tick) FROM outbox.ticks)),"
				" (SELECT pg_catalog.max(number) FROM newest),"
				" (SELECT -pg_catalog.min(id)::pg_catalog.int8 FROM ids WHERE id < 0),"
				" t.clock, t.taken_at FROM (SELECT) one LEFT JOIN (SELECT clock, taken_at"
				" FROM outbox.ticks ORDER BY clock DESC, taken_at DESC LIMIT 1) t ON true");
	outbox_read_row(0, into_int8(&tick), into_int8(&position), into_int8(&shared),
					into_int4(&clock), into_time(&taken_at));
	outbox_raise(&outbox_db->last_tick, (uint64) tick);
	outbox_raise(&outbox_db->last_position, (uint64) position);
	outbox_raise(&outbox_db->last_shared, (uint64) shared);
	LWLockAcquire(outbox_shared->tick_lock, LW_EXCLUSIVE);
	if (clock >= outbox_db->clock)
	{
		outbox_db->clock_time = Max(outbox_db->clock_time, taken_at);
		outbox_db->clock = clock;
	}
	LWLockRelease(outbox_shared->tick_lock);
}

/* The pending events that still exist, and are not forgotten. */
typedef struct Pending
{
	int			  n;
	OutboxEvent **events;
	int			  nforgotten;
} Pending;

static void
take_pending(void *arg, void *wanted, OutboxEvent *event)
{
	Pending *p = arg;

	if (event->forgotten)
	{
		p->nforgotten++;
		return;
	}
	p->events = repalloc(p->events, sizeof(OutboxEvent *) * (p->n + 1));
	p->events[p->n++] = event;
}

static int
compare_seq(const void *a, const void *b)
{
	int64 x = (*(OutboxEvent *const *) a)->seq;
	int64 y = (*(OutboxEvent *const *) b)->seq;

	return x < y ? -1 : x > y;
}

void
outbox_position_load_pending(OutboxEndpoint *ep, const int64 *seqs, int n)
{
	Pending		p = {.events = palloc(sizeof(OutboxEvent *))};
	OutboxPage *page;

	if (n == 0)
		return;
	page = outbox_fetch(seqs, n, take_pending, &p);
	qsort(p.events, p.n, sizeof(OutboxEvent *), compare_seq);

	/* They have no rows: the stored position names them as pending. */
	for (int i = 0; i < p.n; i++)
		outbox_lane_place(ep, outbox_delivery_make(ep, p.events[i], false), false);
	outbox_page_unref(page);
	for (int i = 0; i < p.nforgotten; i++)
	{
		outbox_tally_count(ep, OUTBOX_COUNT_CANCELLED);
		ep->place.dirty = true; /* so that it is pending no more */
	}
}

/* -------------------------------------------------------------- writing */

void
outbox_positions_begin(OutboxPositions *p)
{
	p->piece = (int) pg_atomic_read_u32(&outbox_db->positions_piece);
	memset(&p->rows, 0, sizeof(p->rows));
	p->now = GetCurrentTimestamp();
	memset(p->snapshots, 0, sizeof(p->snapshots));
}

Datum
outbox_snapshot_datum(const OutboxTick *tick)
{
	return DirectFunctionCall1(pg_snapshot_in,
							   CStringGetDatum(outbox_tick_snapshot(tick)));
}

/* Most endpoints of a settle have read the log up to the same few ticks. */
static Datum
snapshot_of(OutboxPositions *p, const OutboxTick *tick)
{
	int i = (int) (tick->number % OUTBOX_POSITION_SNAPSHOTS);

	if (p->snapshots[i].tick != tick)
	{
		p->snapshots[i].datum = outbox_snapshot_datum(tick);
		p->snapshots[i].tick = tick;
	}
	return p->snapshots[i].datum;
}

/* They are NULL if all are 0, or there are none. */
static void
put_counters(OutboxRows *rows, const int64 *counters)
{
	int n = counters ? OUTBOX_COUNTERS : 0;

	while (n > 0 && counters[n - 1] == 0)
		n--;
	put_if(rows, n > 0, outbox_int8_array(counters, n));
}

/* They are mostly in the order of the log already. */
static Datum
pending_datum(OutboxQueue *q)
{
	int64	  *seqs = palloc(sizeof(int64) * q->nheld);
	bytea	  *packed = palloc(VARHDRSZ + OUTBOX_SEQ_SET_BYTES(q->nheld));
	bool	   in_order = true;
	int		   n = 0;
	dlist_iter iter;

	dlist_foreach(iter, &q->held)
	{
		seqs[n] = dlist_container(OutboxDelivery, held_node, iter.cur)->seq;
		in_order = in_order && (n == 0 || seqs[n - 1] < seqs[n]);
		n++;
	}
	if (!in_order)
		qsort(seqs, n, sizeof(int64), outbox_compare_int8);
	SET_VARSIZE(packed,
				VARHDRSZ + outbox_seq_set_pack(seqs, n, (uint8 *) VARDATA(packed)));
	pfree(seqs);
	return PointerGetDatum(packed);
}

/*
 * 'ep' NULL: a row with this id that is no endpoint's.  'counters' NULL: it has none.
 */
static void
add_row(OutboxPositions *p, int32 id, OutboxEndpoint *ep, const OutboxCursor *c,
		const int64 *counters)
{
	OutboxRows *rows = &p->rows;
	bool		reads = c->reading != NULL;
	bool		fails = ep && ep->status.failing_since != 0;

	/* The WAL names an xid at least as high as the position's, see tick.c. */
	Assert(U64FromFullTransactionId(GetTopFullTransactionId()) >=
		   Max(c->read->xmax, reads ? c->reading->xmax : 0));

	put_value(rows, Int16GetDatum(p->piece));
	put_value(rows,
			  Int64GetDatum(
				  (int64) pg_atomic_add_fetch_u64(&outbox_db->last_position, 1)));
	put_value(rows, Int32GetDatum(id));
	put_if(rows, ep && ep->place.shared, Int32GetDatum(shared_id));
	put_value(rows, Int64GetDatum(ep ? ep->config.generation : 0));
	put_value(rows, Int64GetDatum(c->read->number));
	put_value(rows, snapshot_of(p, c->read));
	put_value(rows, Int64GetDatum(c->read->seq_low));
	put_if(rows, reads, Int64GetDatum(c->reading->number));
	put_if(rows, reads, snapshot_of(p, c->reading));
	put_if(rows, reads, Int64GetDatum(c->reading->seq_low));
	put_if(rows, reads, Int64GetDatum(c->reading->seq_high));
	put_value(rows, Int64GetDatum(c->last_seq));
	put_if(rows, ep && ep->queue->nheld > 0, pending_datum(ep->queue));
	put_value(rows, Int64GetDatum(ep ? ep->tally->delivered : 0));
	put_value(rows, Int64GetDatum(ep ? ep->tally->failed_attempts : 0));
	put_value(rows, TimestampTzGetDatum(p->now));
	put_counters(rows, counters);
	put_if(rows, fails, TimestampTzGetDatum(ep->status.failing_since));
	put_if(rows, fails, BoolGetDatum(ep->status.failing_told));
	put_if(rows, ep, TimestampTzGetDatum(ep->status.state_since));
	put_if(rows, ep && ep->pace.breaker != OUTBOX_BREAKER_CLOSED,
		   Int32GetDatum(ep->pace.openings));
}

void
outbox_positions_add(OutboxPositions *p, OutboxEndpoint *ep, const OutboxCursor *c)
{
	if (ep)
		add_row(p, ep->id, ep, c, ep->tally->count);
	else
		add_row(p, shared_id, NULL, c, NULL);
}

void
outbox_positions_add_totals(OutboxPositions *p, const OutboxCursor *head,
							const int64 *totals)
{
	add_row(p, 0, NULL, head, totals);
}

void
outbox_subscription_write(OutboxEndpoint *ep, const OutboxCursor *c)
{
	Datum *topics = palloc(sizeof(Datum) * Max(ep->config.npatterns, 1));
	Datum  patterns;

	for (int i = 0; i < ep->config.npatterns; i++)
		topics[i] = CStringGetTextDatum(ep->config.patterns[i]);
	patterns = outbox_array(topics, ep->config.npatterns, TEXTOID);

	/* Where only the URL or the format has changed, the former subscription goes on. */
	if (outbox_query("UPDATE outbox.subscriptions SET version = $2"
					 " WHERE endpoint_id = $1 AND version < $2 AND version ="
					 " (SELECT max(v.version) FROM outbox.subscriptions v"
					 " WHERE v.endpoint_id = $1) AND topics = $3"
					 " AND filter::text IS NOT DISTINCT FROM $4::text",
					 arg_int4(ep->id), arg_int8(ep->config.version),
					 arg_datum(TEXTARRAYOID, patterns),
					 arg_or_null(JSONPATHOID, PointerGetDatum(ep->config.filter),
								 ep->config.filter == NULL)) > 0)
		return;
	outbox_query("INSERT INTO outbox.subscriptions"
				 " (endpoint_id, version, topics, filter, read, reading, last_seq)"
				 " VALUES ($1, $2, $3, $4, $5, $6, $7)"
				 " ON CONFLICT (endpoint_id, version) DO NOTHING",
				 arg_int4(ep->id), arg_int8(ep->config.version),
				 arg_datum(TEXTARRAYOID, patterns),
				 arg_or_null(JSONPATHOID, PointerGetDatum(ep->config.filter),
							 ep->config.filter == NULL),
				 arg_datum(PG_SNAPSHOTOID, outbox_snapshot_datum(c->read)),
				 arg_or_null(PG_SNAPSHOTOID,
							 c->reading ? outbox_snapshot_datum(c->reading) : (Datum) 0,
							 c->reading == NULL),
				 arg_int8(c->last_seq));
}

void
outbox_positions_write(OutboxPositions *p)
{
	if (p->rows.n > 0)
		pg_atomic_fetch_add_u32(&outbox_db->position_rows,
								outbox_append_rows(outbox_table_oid(
													   OUTBOX_TABLE_POSITIONS_0 +
													   p->piece),
												   22, &p->rows));
}

void
outbox_positions_write_tick(const OutboxTick *tick, int piece)
{
	OutboxTable table = OUTBOX_TABLE_TICKS_0 + piece;
	OutboxRows	rows = {0};
	int64		highest = outbox_number_highest(outbox_sequence_oid());
	int32		clock;

	if (!outbox_lock_if_free(table, table, RowExclusiveLock))
		return;
	LWLockAcquire(outbox_shared->tick_lock, LW_EXCLUSIVE);
	if (tick->taken_at < outbox_db->clock_time)
		outbox_db->clock++;
	outbox_db->clock_time = tick->taken_at;
	clock = outbox_db->clock;
	LWLockRelease(outbox_shared->tick_lock);
	put_value(&rows, Int16GetDatum(piece));
	put_value(&rows, Int64GetDatum(tick->number));
	put_value(&rows, TimestampTzGetDatum(tick->taken_at));
	put_value(&rows, outbox_snapshot_datum(tick));
	put_value(&rows, Int64GetDatum(tick->seq_low));
	/* The one that adopt() makes has no bound, and numbers go on behind the one that is stored. */
	put_value(&rows, Int64GetDatum(Min(tick->seq_high, highest)));
	put_value(&rows, Int32GetDatum(clock));
	outbox_append_rows(outbox_table_oid(table), 7, &rows);
}
