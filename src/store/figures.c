/*
 * figures.c
 *	  Owns outbox.figures: figures of endpoints, in buckets of five minutes and of an hour.
 *
 * A bucket is counted in memory (tally.c), and its entry written once it has ended.  A row
 * has the entries of a block of endpoints, and is never changed: later ones of the same block
 * and time are another row.  The rows of an hour are made from those of its five minutes when
 * a later hour has some.  A crash loses the open buckets.  Figures of the whole database have
 * the endpoint 0.
 *
 * The hours up to the newest row of an hour are made.  An entry of one of them that comes too
 * late for it is written to both widths.  A lock keeps the two apart.
 *
 * The table has three pieces for each width, used in turn: which one follows from the time of
 * the bucket.  A piece is emptied before the first row of another turn.
 */
#include "base/outbox.h"

#include "funcapi.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "base/version.h"
#include "endpoint/endpoint_stats.h"
#include "log/tables.h"
#include "log/transaction.h"
#include "server/shmem.h"
#include "server/subscription.h"
#include "store/figures.h"

/* Buckets end together.  They are written together, so many and the rest of their block in a
 * transaction. */
#define GATHER_FOR (1 * USECS_PER_SEC)
#define AT_ONCE 2000

#define LOCKED_AGAIN \
	(10 * USECS_PER_SEC) /* µs: after a piece that is to be emptied was locked */

#define PIECES 3 /* of each width */

enum
{
	FIVE_MINUTES,
	HOURS,
	WIDTHS
};

/* How long each piece is in use, which is half of the time for which figures are kept. */
static const int64 turns[WIDTHS] = {USECS_PER_DAY, 45 * USECS_PER_DAY};

/* What a transaction writes. */
typedef struct Writing
{
	OutboxRows	rows[WIDTHS * PIECES];
	TimestampTz written; /* tells rows of the same block and time apart */
	int64		turn[WIDTHS];
} Writing;

static int64	   in_turn[WIDTHS]; /* the last one that was begun */
static TimestampTz again_at;

TimestampTz
outbox_figures_due(void)
{
	TimestampTz ended = outbox_tally_figures_until();

	if (!dlist_is_empty(outbox_tally_figures()))
		ended = Min(ended,
					dlist_head_element(OutboxFigures, node, outbox_tally_figures())->at +
						OUTBOX_FIGURES_TIME);
	return ended == DT_NOEND ? DT_NOEND : Max(again_at, ended + GATHER_FOR);
}

/* How much was done in this database, in any unit. */
static uint64
done_so_far(OutboxDatabase *db)
{
	uint64 sum = 0;

	for (int c = 0; c < OUTBOX_FIGURES; c++)
		sum += pg_atomic_read_u64(&db->totals[c]);
	return sum;
}

static TimestampTz look_at; /* 0: no bucket has begun */

TimestampTz
outbox_figures_look_due(void)
{
	return look_at;
}

void
outbox_figures_look(void *arg)
{
	TimestampTz		now = *(TimestampTz *) arg;
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);
	TimestampTz		oldest = outbox_stats_oldest_pending(MyDatabaseId);
	uint64			done = db ? done_so_far(db) : 0;
	int64			memory = 0;
	static uint64	before;

	for (int i = 0; db && i < db->nworkers; i++)
		memory += pg_atomic_read_u64(&db->workers[i].resident);
	if (look_at != 0 && (oldest != 0 || done != before))
		outbox_tally_look(look_at - OUTBOX_FIGURES_TIME,
						  oldest ? Max(now - oldest, 0) : 0, memory);
	before = done;
	look_at = now - now % OUTBOX_FIGURES_TIME + OUTBOX_FIGURES_TIME;
}

/* All rows of a piece are of one turn, so one of them is looked at. */
static bool
has_other_turn(int piece, int width, int64 turn)
{
	char		sql[64];
	TimestampTz at;

	snprintf(sql, sizeof(sql), "SELECT at FROM outbox.figures_%d LIMIT 1", piece);
	if (outbox_query(sql) == 0)
		return false;
	outbox_read_row(0, into_time(&at));
	return at / turns[width] != turn;
}

/*
 * Empties the piece of a bucket if another turn has used it.  Looks again once it has the
 * lock: another worker may have emptied it, and have written to it.  Returns the piece, or -1
 * if another session has a lock.
 */
static int
piece_of(Writing *w, int width, TimestampTz at)
{
	int64 turn = at / turns[width];
	int	  piece = width * PIECES + (int) (turn % PIECES);
	Oid	  table = outbox_table_oid(OUTBOX_TABLE_FIGURES_0 + piece);

	if (turn != w->turn[width] && has_other_turn(piece, width, turn))
	{
		if (!ConditionalLockRelationOid(table, AccessExclusiveLock))
			return -1;
		if (has_other_turn(piece, width, turn))
			outbox_empty_table(table);
		OUTBOX_CRASH_POINT("figures.emptied");
	}
	w->turn[width] = turn;
	return piece;
}

/* Hours are made while nothing else is written. */
static bool
begin(Writing *w, LOCKMODE mode)
{
	memset(w, 0, sizeof(Writing));
	w->written = GetCurrentTimestamp();
	memcpy(w->turn, in_turn, sizeof(in_turn));
	if (!outbox_txn_begin(true))
		return false;
	if (outbox_lock_if_free(OUTBOX_TABLE_FIGURES, OUTBOX_TABLE_FIGURES, mode) &&
		outbox_lock_if_free(OUTBOX_TABLE_FIGURES_0, OUTBOX_TABLE_FIGURES_5,
							RowExclusiveLock))
		return true;
	outbox_txn_abort();
	return false;
}

static void
commit(const Writing *w)
{
	outbox_txn_commit();
	memcpy(in_turn, w->turn, sizeof(in_turn));
}

static TimestampTz
hour_of(TimestampTz at)
{
	return at - at % USECS_PER_HOUR;
}

/* Returns the end of the hours that are made. */
static TimestampTz
made_until(void)
{
	TimestampTz newest = 0;

	outbox_plan_run("SELECT max(at) FROM outbox.figures WHERE piece IN (3, 4, 5)");
	outbox_read_row(0, into_time(&newest));
	return newest ? newest + USECS_PER_HOUR : 0;
}

/* Returns the first hour that has rows of five minutes and is not made. */
static TimestampTz
next_hour(void)
{
	TimestampTz first = 0;

	outbox_query("SELECT COALESCE(min(at), 'infinity') FROM outbox.figures"
				 " WHERE piece IN (0, 1, 2) AND at >= $1",
				 arg_time(made_until()));
	outbox_read_row(0, into_time(&first));
	return TIMESTAMP_NOT_FINITE(first) ? first : hour_of(first);
}

typedef enum Made
{
	MADE_ALL,
	MADE_ONE,
	MADE_LOCKED
} Made;

/* Makes the rows of the next hour, if it is before this one. */
static Made
make_hour(TimestampTz before)
{
	static TimestampTz made_before; /* 0: not known */
	Writing			   w;
	TimestampTz		   hour;
	int				   piece;

	if (made_before == before)
		return MADE_ALL;
	if (!begin(&w, ShareRowExclusiveLock))
		return MADE_LOCKED;
	hour = next_hour();
	if (hour >= before)
	{
		outbox_txn_commit();
		made_before = before;
		return MADE_ALL;
	}
	piece = piece_of(&w, HOURS, hour);
	if (piece < 0)
	{
		outbox_txn_abort();
		return MADE_LOCKED;
	}
	outbox_query(
		"INSERT INTO outbox.figures (piece, at, written, block, entries)"
		" SELECT $1, $2, $3, block, outbox.figures_sum(string_agg(entries, ''), NULL, true)"
		" FROM outbox.figures WHERE piece IN (0, 1, 2) AND at >= $2 AND at < $4"
		" GROUP BY block",
		arg_int2(piece), arg_time(hour), arg_time(w.written),
		arg_time(hour + USECS_PER_HOUR));
	OUTBOX_CRASH_POINT("figures.hour");
	commit(&w);
	return MADE_ONE;
}

/*
 * Puts a row.  Rows of an hour may be of several buckets, so 'written' tells them apart.
 * Returns false if another session has a lock.
 */
static bool
put_row(Writing *w, int width, TimestampTz at, const OutboxFigures *f)
{
	int			piece = piece_of(w, width, at);
	OutboxRows *rows;

	if (piece < 0)
		return false;
	rows = &w->rows[piece];
	put_value(rows, TimestampTzGetDatum(at));
	put_value(rows, TimestampTzGetDatum(w->written + (f->at - at) / OUTBOX_FIGURES_TIME));
	put_value(rows, Int32GetDatum(f->block));
	put_value(rows, Int16GetDatum(piece));
	put_value(rows,
			  PointerGetDatum(cstring_to_text_with_len(f->entries.data, f->entries.len)));
	return true;
}

/*
 * Writes some of the figures, each into its bucket, and into its hour if that is made.
 * Returns how many blocks these were.  -1: another session has a lock.
 */
static int
write_some(void)
{
	Writing		w;
	TimestampTz made;
	dlist_iter	iter;
	int			nblocks = 0, n = 0;

	if (!begin(&w, RowExclusiveLock))
		return -1;
	made = made_until();
	dlist_foreach(iter, outbox_tally_figures())
	{
		const OutboxFigures *f = dlist_container(OutboxFigures, node, iter.cur);
		TimestampTz			 hour = hour_of(f->at);

		if (n >= AT_ONCE)
			break;
		if (!put_row(&w, FIVE_MINUTES, f->at, f) ||
			(hour < made && !put_row(&w, HOURS, hour, f)))
		{
			outbox_txn_abort();
			return -1;
		}
		n += f->n;
		nblocks++;
	}
	for (int i = 0; i < (int) lengthof(w.rows); i++)
		if (w.rows[i].n > 0)
			outbox_append_rows(outbox_table_oid(OUTBOX_TABLE_FIGURES_0 + i), 5,
							   &w.rows[i]);
	OUTBOX_CRASH_POINT("figures.written");
	commit(&w);
	return nblocks;
}

void
outbox_figures_write(void *arg)
{
	TimestampTz	   now = *(TimestampTz *) arg;
	OutboxFigures *first;
	Made		   made;
	int			   n = 0;

	outbox_tally_end_open(now);
	if (dlist_is_empty(outbox_tally_figures()))
		return;
	first = dlist_head_element(OutboxFigures, node, outbox_tally_figures());
	made = make_hour(hour_of(first->at));
	if (made == MADE_ALL)
		n = write_some();
	if (made == MADE_LOCKED || n < 0)
		again_at = now + LOCKED_AGAIN;
	for (; n > 0; n--)
		outbox_tally_free_figures(
			dlist_head_element(OutboxFigures, node, outbox_tally_figures()));
}

/* ------------------------------------------------------------ for SQL */

typedef struct Entry
{
	uint32		 endpoint_id;
	uint32		 tenant_length; /* 0: none */
	const char	*tenant;
	const uint8 *counts;
	const uint8 *end;
} Entry;

/* Reads a number, and moves '*p' behind it.  False: there is none. */
static bool
get_number(const uint8 **p, const uint8 *end, uint32 *n)
{
	*n = 0;
	for (int shift = 0; shift < 7 * OUTBOX_NUMBER_BYTES && *p < end; shift += 7)
	{
		uint8 byte = *(*p)++;

		*n |= (uint32) (byte & 0x7f) << shift;
		if (byte < 0x80)
			return true;
	}
	return false;
}

/* Reads the next entry, and moves '*p' behind it.  False: there is none. */
static bool
next_entry(const uint8 **p, const uint8 *end, Entry *e)
{
	uint32 size;

	CHECK_FOR_INTERRUPTS();
	if (!get_number(p, end, &e->endpoint_id) || !get_number(p, end, &e->tenant_length) ||
		e->tenant_length > end - *p)
		return false;
	e->tenant = (const char *) *p;
	*p += e->tenant_length;
	if (!get_number(p, end, &size) || size > end - *p)
		return false;
	e->counts = *p;
	e->end = *p += size;
	return true;
}

static void
add_up(const Entry *e, uint64 *sum)
{
	const uint8 *p = e->counts;
	uint32		 n;

	while (p < e->end)
	{
		int which = *p++;

		if (!get_number(&p, e->end, &n))
			break;
		sum[which] += n;
	}
}

static int
compare_entries(const void *a, const void *b)
{
	const Entry *l = a;
	const Entry *r = b;

	if (l->endpoint_id != r->endpoint_id)
		return l->endpoint_id < r->endpoint_id ? -1 : 1;
	if (l->tenant_length != r->tenant_length)
		return l->tenant_length < r->tenant_length ? -1 : 1;
	return memcmp(l->tenant, r->tenant, l->tenant_length);
}

static int
compare_ids(const void *a, const void *b)
{
	int32 l = *(const int32 *) a;
	int32 r = *(const int32 *) b;

	return (l > r) - (l < r);
}

/* Appends the sum of 'n' entries, as one of the first one's endpoint. */
static void
append_sum(StringInfo result, const Entry *first, int n)
{
	uint64 sum[256] = {0};
	uint8  counts[lengthof(sum) * (1 + OUTBOX_NUMBER_BYTES)];
	uint8 *p = counts;

	for (int i = 0; i < n; i++)
		add_up(&first[i], sum);
	for (int i = 0; i < (int) lengthof(sum); i++)
		p = outbox_put_figure(p, i, (int64) sum[i]);
	outbox_put_entry(result, first->endpoint_id, first->tenant, first->tenant_length,
					 counts, p - counts);
}

/* figures_sum(entries, wanted, apart): wanted is sorted. */
OUTBOX_FUNCTION(outbox_figures_sum_1_0, 3)
{
	bytea		  *all = PG_ARGISNULL(0) ? NULL : PG_GETARG_BYTEA_PP(0);
	ArrayType	  *wanted = PG_ARGISNULL(1) ? NULL : PG_GETARG_ARRAYTYPE_P(1);
	bool		   apart = !PG_ARGISNULL(2) && PG_GETARG_BOOL(2);
	int			   nwanted = 0;
	const uint8	  *p, *end;
	Entry		  *entries;
	int			   n = 0, max = 64;
	StringInfoData result;

	if (all == NULL || (wanted && ARR_HASNULL(wanted)))
		PG_RETURN_NULL();
	if (wanted)
		nwanted = ArrayGetNItems(ARR_NDIM(wanted), ARR_DIMS(wanted));
	p = (const uint8 *) VARDATA_ANY(all);
	end = p + VARSIZE_ANY_EXHDR(all);
	entries = palloc(sizeof(Entry) * max);
	while (next_entry(&p, end, &entries[n]))
	{
		int32 id = (int32) entries[n].endpoint_id;

		if (wanted &&
			!bsearch(&id, ARR_DATA_PTR(wanted), nwanted, sizeof(id), compare_ids))
			continue;
		n++;
		outbox_room(entries, n, max, CurrentMemoryContext);
	}
	if (n == 0)
		PG_RETURN_NULL();
	if (apart)
		qsort(entries, n, sizeof(Entry), compare_entries);
	initStringInfo(&result);
	for (int i = 0, run; i < n; i += run)
	{
		for (run = 1; i + run < n &&
			 (!apart || compare_entries(&entries[i], &entries[i + run]) == 0);
			 run++)
			;
		append_sum(&result, &entries[i], run);
	}
	PG_RETURN_BYTEA_P(cstring_to_text_with_len(result.data, result.len));
}

/* The counts of some counters, as members of an object that are not 0.  Returns their sum. */
static uint64
put_classes(StringInfo json, const uint64 *sum, OutboxCounter first, OutboxCounter last)
{
	uint64 all = 0;

	for (int c = first; c <= (int) last; c++)
	{
		uint64 n = sum[OUTBOX_FIGURE_COUNTER + c];

		if (n > 0)
			appendStringInfo(json, "%s\"%s\": " UINT64_FORMAT, all > 0 ? ", " : "",
							 outbox_counter_names[c].label, n);
		all += n;
	}
	return all;
}

/* Adds up all entries. */
static void
add_up_all(const bytea *all, uint64 *sum)
{
	const uint8 *p = (const uint8 *) VARDATA_ANY(all);
	const uint8 *end = p + VARSIZE_ANY_EXHDR(all);
	Entry		 e;

	while (next_entry(&p, end, &e))
		add_up(&e, sum);
}

/* figures_of(entries) */
OUTBOX_FUNCTION(outbox_figures_of_1_0, 1)
{
	bytea		*all = PG_GETARG_BYTEA_PP(0);
	const uint8 *p = (const uint8 *) VARDATA_ANY(all);
	const uint8 *end = p + VARSIZE_ANY_EXHDR(all);
	OutboxRows	 row = {0};
	Entry		 e;

	InitMaterializedSRF(fcinfo, 0);
	while (next_entry(&p, end, &e))
	{
		uint64 sum[256] = {0};
		uint64 failed = 0;

		add_up(&e, sum);
		for (int c = OUTBOX_COUNT_TIMEOUT; c <= OUTBOX_COUNT_ANSWER; c++)
			failed += sum[OUTBOX_FIGURE_COUNTER + c];
		put_value(&row, Int32GetDatum((int32) e.endpoint_id));
		put_if(&row, e.tenant_length > 0,
			   PointerGetDatum(
				   cstring_to_text_with_len(e.tenant, (int) e.tenant_length)));
		put_value(&row,
				  Int64GetDatum(sum[OUTBOX_FIGURE_COUNTER + OUTBOX_COUNT_DELIVERED]));
		put_value(&row, Int64GetDatum(failed));
		outbox_add_row(fcinfo, &row);
	}
	return (Datum) 0;
}

OUTBOX_FUNCTION(outbox_figures_shown_1_0, 1)
{
	static const struct
	{
		const char *name;
		double		part;
	} parts[] = {{"latency_p50_ms", 0.50},
				 {"latency_p95_ms", 0.95},
				 {"latency_p99_ms", 0.99}};
	uint64		   sum[256] = {0};
	uint32		   latencies[OUTBOX_HISTOGRAM_BUCKETS];
	int64		   total = 0;
	uint64		   n;
	StringInfoData json, classes;

	add_up_all(PG_GETARG_BYTEA_PP(0), sum);
	initStringInfo(&json);
	initStringInfo(&classes);
	for (int i = 0; i < OUTBOX_HISTOGRAM_BUCKETS; i++)
	{
		latencies[i] = (uint32) Min(sum[i], PG_UINT32_MAX);
		total += latencies[i];
	}
	n = put_classes(&classes, sum, OUTBOX_COUNT_TIMEOUT, OUTBOX_COUNT_ANSWER);
	appendStringInfo(&json,
					 "{\"delivered\": " UINT64_FORMAT
					 ", \"failed_attempts\": " UINT64_FORMAT ", \"failures\": {%s}",
					 sum[OUTBOX_FIGURE_COUNTER + OUTBOX_COUNT_DELIVERED], n,
					 classes.data);
	resetStringInfo(&classes);
	n = put_classes(&classes, sum, OUTBOX_COUNT_MAX_ATTEMPTS, OUTBOX_COUNT_UNREADABLE);
	appendStringInfo(&json, ", \"died\": " UINT64_FORMAT ", \"deaths\": {%s}", n,
					 classes.data);
	for (int i = 0; i < (int) lengthof(parts); i++)
		if (total == 0)
			appendStringInfo(&json, ", \"%s\": null", parts[i].name);
		else
			appendStringInfo(&json, ", \"%s\": %.3f", parts[i].name,
							 outbox_percentile(latencies, total, parts[i].part));
	if (sum[OUTBOX_FIGURE_LOOKS] > 0)
		appendStringInfo(&json, ", \"oldest_pending_s\": %.1f, \"memory_bytes\": %.0f",
						 sum[OUTBOX_FIGURE_OLDEST] / 10.0 / sum[OUTBOX_FIGURE_LOOKS],
						 sum[OUTBOX_FIGURE_MEMORY] * 1024.0 / sum[OUTBOX_FIGURE_LOOKS]);
	appendStringInfoChar(&json, '}');
	PG_RETURN_DATUM(DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data)));
}
