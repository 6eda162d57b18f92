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
#include "endpoint/parking.h"
#include "endpoint/tally.h"
#include "log/tables.h"
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

#define CURSOR_COLUMNS 9

static char *
snapshot_text(Datum snapshot)
{
	return DatumGetCString(DirectFunctionCall1(pg_snapshot_out, snapshot));
}

/* From OUTBOX_CURSOR_COLUMNS, which are the first columns. */
static void
read_cursor(OutboxColumns row, OutboxCursor *cursor)
{
	TimestampTz at = row_time(row, 8, 0);
	OutboxTick *read = outbox_tick_make(row_int8(row, 0), at, row_int8(row, 2),
										row_int8(row, 2), snapshot_text(row.values[1]));
	OutboxTick *reading = NULL;

	if (!row.nulls[3])
		reading = outbox_tick_make(row_int8(row, 3), at, row_int8(row, 5),
								   row_int8(row, 6), snapshot_text(row.values[4]));
	outbox_cursor_set(cursor, read, reading, row_int8(row, 7));
	outbox_tick_unref(read);
	outbox_tick_unref(reading);
}

/* An array may lack numbers at its end, which are 0 then. */
static void
read_counters(OutboxColumns row, int i, int64 *counters)
{
	Datum *elems;
	bool  *nulls;
	int	   n;

	memset(counters, 0, sizeof(int64) * OUTBOX_COUNTERS);
	if (row.nulls[i])
		return;
	deconstruct_array(DatumGetArrayTypeP(row.values[i]), INT8OID, 8, FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &elems, &nulls, &n);
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
		if (*n == max)
		{
			max *= 2;
			seqs = repalloc_huge(seqs, sizeof(int64) * max);
		}
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
	memset(totals, 0, sizeof(int64) * OUTBOX_COUNTERS);
	if (outbox_query("SELECT counters FROM outbox.positions"
					 " WHERE endpoint_id = 0"
					 " ORDER BY number DESC LIMIT 1") == 0)
		return false;
	read_counters(fetch_row(0), 0, totals);
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
read_shared(Datum id, OutboxCursor *cursor)
{
	static SPIPlanPtr plan;

	if (DatumGetInt32(id) != last_read)
	{
		outbox_positions_read_again();
		if (outbox_plan_run(&plan,
							"SELECT " OUTBOX_CURSOR_COLUMNS " FROM outbox.positions"
							" WHERE endpoint_id = $1"
							" ORDER BY number DESC LIMIT 1",
							arg_datum(INT4OID, id)) == 0)
			elog(ERROR, "shared position %d is missing", DatumGetInt32(id));
		read_cursor(fetch_row(0), &last_cursor);
		last_read = DatumGetInt32(id);
	}
	outbox_cursor_copy(cursor, &last_cursor);
}

bool
outbox_position_read(OutboxColumns row, OutboxPosition *p)
{
	const int c = CURSOR_COLUMNS;

	memset(p, 0, sizeof(*p));
	if (row.nulls[0])
		return false;
	p->generation = row_int8(row, c);
	if (!row.nulls[c + 2])
		p->pending = read_pending(DatumGetByteaPP(row.values[c + 2]), &p->npending);
	p->delivered = row_int8(row, c + 3);
	p->failed_attempts = row_int8(row, c + 4);
	read_counters(row, c + 5, p->counters);
	p->failing_since = row_time(row, c + 6, 0);
	p->settled_at = row_time(row, c - 1, 0);
	p->failing_told = !row.nulls[c + 7] && DatumGetBool(row.values[c + 7]);
	p->state_since = row_time(row, c + 8, 0);
	p->backing_off = !row.nulls[c + 9];
	p->probes = row_int4(row, c + 9);
	if (row.nulls[c + 1])
		read_cursor(row, &p->cursor);
	else
	{
		p->follows = DatumGetInt32(row.values[c + 1]);
		read_shared(row.values[c + 1], &p->cursor);
	}
	return true;
}

bool
outbox_position_newest_shared(OutboxCursor *cursor)
{
	if (outbox_query(OUTBOX_NEWEST_POSITIONS(
			"endpoint_id < 0") " SELECT " OUTBOX_CURSOR_COLUMNS
							   ", endpoint_id FROM newest"
							   " ORDER BY number DESC LIMIT 1") == 0)
		return false;
	read_cursor(fetch_row(0), cursor);
	newest_shared = row_int4(fetch_row(0), CURSOR_COLUMNS);
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

void
outbox_positions_in_use(void)
{
	OutboxColumns row;

	outbox_query(
		"SELECT (SELECT piece FROM outbox.positions ORDER BY endpoint_id DESC, number DESC LIMIT 1),"
		" (pg_catalog.pg_relation_size('outbox.positions_0')"
		" + pg_catalog.pg_relation_size('outbox.positions_1')) / " CppAsString2(
			ROW_BYTES));
	row = fetch_row(0);
	pg_atomic_write_u32(&outbox_db->positions_piece,
						row.nulls[0] ? 0 : DatumGetInt16(row.values[0]));
	pg_atomic_write_u32(&outbox_db->position_rows, (uint32) row_int8(row, 1));
}

void
outbox_positions_raise_numbers(void)
{
	OutboxColumns row;

	outbox_query(OUTBOX_NEWEST_POSITIONS(
		"true") " SELECT GREATEST("
				"(SELECT pg_catalog.max(GREATEST(read_tick, reading_tick)) FROM newest),"
				"(SELECT pg_catalog.max(tick) FROM outbox.ticks)),"
				" (SELECT pg_catalog.max(number) FROM newest),"
				" (SELECT -pg_catalog.min(id)::pg_catalog.int8 FROM ids WHERE id < 0),"
				" t.clock, t.taken_at FROM (SELECT) one LEFT JOIN (SELECT clock, taken_at"
				" FROM outbox.ticks ORDER BY clock DESC, taken_at DESC LIMIT 1) t ON true");
	row = fetch_row(0);
	outbox_raise(&outbox_db->last_tick, (uint64) row_int8(row, 0));
	outbox_raise(&outbox_db->last_position, (uint64) row_int8(row, 1));
	outbox_raise(&outbox_db->last_shared, (uint64) row_int8(row, 2));
	LWLockAcquire(outbox_shared->tick_lock, LW_EXCLUSIVE);
	if (!row.nulls[3] && DatumGetInt32(row.values[3]) >= outbox_db->clock)
	{
		outbox_db->clock_time = Max(outbox_db->clock_time, row_time(row, 4, 0));
		outbox_db->clock = DatumGetInt32(row.values[3]);
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
	event->page->refs++;
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
	Pending p = {.events = palloc(sizeof(OutboxEvent *))};

	if (n == 0)
		return;
	PG_TRY();
	{
		outbox_fetch(seqs, n, take_pending, &p);
	}
	PG_CATCH();
	{
		for (int i = 0; i < p.n; i++)
			outbox_page_unref(p.events[i]->page);
		PG_RE_THROW();
	}
	PG_END_TRY();
	qsort(p.events, p.n, sizeof(OutboxEvent *), compare_seq);
	for (int i = 0; i < p.n; i++)
	{
		OutboxPage *page = p.events[i]->page;

		outbox_parking_admit(ep, p.events[i]);
		outbox_page_unref(page);
	}
	for (int i = 0; i < p.nforgotten; i++)
	{
		outbox_tally_count(ep, OUTBOX_COUNT_CANCELLED);
		ep->place.dirty = true; /* so that it is pending no more */
	}
}

/* -------------------------------------------------------------- writing */

#define POSITION_COLUMNS 22

void
outbox_positions_begin(OutboxPositions *p)
{
	p->piece = (int) pg_atomic_read_u32(&outbox_db->positions_piece);
	p->n = 0;
	p->max = 64;
	p->values = palloc(sizeof(Datum) * POSITION_COLUMNS * p->max);
	p->nulls = palloc(sizeof(bool) * POSITION_COLUMNS * p->max);
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

/* NULL: all are 0. */
static Datum
counters_datum(const int64 *counters, bool *null)
{
	Datum elems[OUTBOX_COUNTERS];
	int	  n = 0;

	for (int c = 0; c < OUTBOX_COUNTERS; c++)
	{
		elems[c] = Int64GetDatum(counters[c]);
		if (counters[c] != 0)
			n = c + 1;
	}
	*null = n == 0;
	return n == 0 ? (Datum) 0 :
					PointerGetDatum(construct_array(elems, n, INT8OID, 8, FLOAT8PASSBYVAL,
													TYPALIGN_DOUBLE));
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
	Datum *v;
	bool  *n;

	/* The WAL names an xid at least as high as the position's, see tick.c. */
	Assert(U64FromFullTransactionId(GetTopFullTransactionId()) >=
		   Max(c->read->xmax, c->reading ? c->reading->xmax : 0));

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
	v[1] = Int64GetDatum((int64) pg_atomic_add_fetch_u64(&outbox_db->last_position, 1));
	v[2] = Int32GetDatum(id);
	v[3] = Int32GetDatum(shared_id);
	n[3] = ep == NULL || !ep->place.shared;
	v[4] = Int64GetDatum(ep ? ep->config.generation : 0);
	v[5] = Int64GetDatum(c->read->number);
	v[6] = snapshot_of(p, c->read);
	v[7] = Int64GetDatum(c->read->seq_low);
	n[8] = n[9] = n[10] = n[11] = c->reading == NULL;
	if (c->reading)
	{
		v[8] = Int64GetDatum(c->reading->number);
		v[9] = snapshot_of(p, c->reading);
		v[10] = Int64GetDatum(c->reading->seq_low);
		v[11] = Int64GetDatum(c->reading->seq_high);
	}
	v[12] = Int64GetDatum(c->last_seq);
	n[13] = ep == NULL || ep->queue->nheld == 0;
	if (!n[13])
		v[13] = pending_datum(ep->queue);
	v[14] = Int64GetDatum(ep ? ep->tally->delivered : 0);
	v[15] = Int64GetDatum(ep ? ep->tally->failed_attempts : 0);
	v[16] = TimestampTzGetDatum(p->now);
	n[17] = counters == NULL;
	if (counters)
		v[17] = counters_datum(counters, &n[17]);
	n[18] = n[19] = ep == NULL || ep->status.failing_since == 0;
	if (!n[18])
	{
		v[18] = TimestampTzGetDatum(ep->status.failing_since);
		v[19] = BoolGetDatum(ep->status.failing_told);
	}
	n[20] = ep == NULL;
	if (ep)
		v[20] = TimestampTzGetDatum(ep->status.state_since);
	n[21] = ep == NULL || ep->pace.breaker == OUTBOX_BREAKER_CLOSED;
	if (!n[21])
		v[21] = Int32GetDatum(ep->pace.openings);
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
	patterns = PointerGetDatum(
		construct_array(topics, ep->config.npatterns, TEXTOID, -1, false, TYPALIGN_INT));

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
	if (p->n > 0)
		outbox_append_rows(outbox_table_oid(OUTBOX_TABLE_POSITIONS_0 + p->piece), p->n,
						   p->values, p->nulls);
	pg_atomic_fetch_add_u32(&outbox_db->position_rows, p->n);
}

void
outbox_positions_write_tick(const OutboxTick *tick, int piece)
{
	Datum values[7];
	bool  nulls[7] = {0};

	LWLockAcquire(outbox_shared->tick_lock, LW_EXCLUSIVE);
	if (tick->taken_at < outbox_db->clock_time)
		outbox_db->clock++;
	outbox_db->clock_time = tick->taken_at;
	values[6] = Int32GetDatum(outbox_db->clock);
	LWLockRelease(outbox_shared->tick_lock);
	values[0] = Int16GetDatum(piece);
	values[1] = Int64GetDatum(tick->number);
	values[2] = TimestampTzGetDatum(tick->taken_at);
	values[3] = outbox_snapshot_datum(tick);
	values[4] = Int64GetDatum(tick->seq_low);
	values[5] = Int64GetDatum(tick->seq_high);
	outbox_append_rows(outbox_table_oid(OUTBOX_TABLE_TICKS_0 + piece), 1, values, nulls);
}
