/*
 * figures.c
 *	  Owns outbox.figures: figures of endpoints, in buckets of five minutes and of an hour.
 *
 * A bucket is counted in memory (tally.c), and written once it has ended.  A row has the
 * figures of a block of endpoints that one worker serves.  Later ones of the same block and
 * time are added to it, as the next bucket of the hour is.  A crash loses the open buckets.
 * Figures of the whole database have the endpoint 0.
 *
 * The table has three pieces for each width, used in turn: which one follows from the time of
 * the bucket.  A piece is emptied before the first row of another turn.
 */
#include "base/outbox.h"

#include "port/pg_bswap.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
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
#define AT_ONCE 200
#define BLOCK 32 /* endpoints */

#define LOCKED_AGAIN \
	(10 * USECS_PER_SEC) /* µs: after a piece that is to be emptied was locked */

#define PIECES 3 /* of each width */

/* How long each piece is in use, which is half of the time for which figures are kept. */
static const int64 turns[] = {USECS_PER_DAY, 45 * USECS_PER_DAY};

static int64	   in_turn[lengthof(turns)]; /* the last one that was begun */
static TimestampTz again_at;

TimestampTz
outbox_figures_due(void)
{
	const OutboxFigures *first;

	if (dlist_is_empty(outbox_tally_figures()))
		return DT_NOEND;
	first = dlist_head_element(OutboxFigures, node, outbox_tally_figures());
	return Max(again_at, first->at + OUTBOX_FIGURES_TIME + GATHER_FOR);
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
 * Empties the piece that a turn begins with.  Looks again once it has the lock: another worker
 * may have emptied it, and have written to it.  Returns false if another session has a lock.
 */
static bool
begin_turn(int piece, int width, int64 turn)
{
	Oid table = outbox_table_oid(OUTBOX_TABLE_FIGURES_0 + piece);

	if (!has_other_turn(piece, width, turn))
		return true;
	if (!ConditionalLockRelationOid(table, AccessExclusiveLock))
		return false;
	if (has_other_turn(piece, width, turn))
		outbox_empty_table(table);
	OUTBOX_CRASH_POINT("figures.emptied");
	return true;
}

/* 'nulls' NULL: none is NULL. */
static Datum
array_of(Datum *values, bool *nulls, int n, Oid type)
{
	int	  dims[1] = {n};
	int	  lbs[1] = {1};
	int16 len;
	bool  byval;
	char  align;

	get_typlenbyvalalign(type, &len, &byval, &align);
	return PointerGetDatum(
		construct_md_array(values, nulls, 1, dims, lbs, type, len, byval, align));
}

/*
 * Parts of a statement about figures "r": its block, figures added up by endpoint, and columns
 * of a row that has several.
 */
#define BLOCK_OF_R "r.endpoint_id / " CppAsString2(BLOCK)
#define ADDED_UP \
	"r.endpoint_id, r.tenant," \
	" LEAST(sum(r.delivered), 2147483647)::int4 AS delivered," \
	" LEAST(sum(r.failed), 2147483647)::int4 AS failed," \
	" outbox.figures_sum(string_agg(r.counts, '')) AS counts"
#define AS_ROW \
	"array_agg(r.endpoint_id), array_agg(r.tenant), array_agg(r.delivered)," \
	" array_agg(r.failed), array_agg(r.counts)"

static bool
are_of_one_row(const OutboxFigures *a, const OutboxFigures *b)
{
	return a->at == b->at && a->endpoint_id / BLOCK == b->endpoint_id / BLOCK;
}

void
outbox_figures_write(void *arg)
{
	TimestampTz		   now = *(TimestampTz *) arg;
	Datum			   columns[8][AT_ONCE + BLOCK];
	bool			   no_tenant[AT_ONCE + BLOCK];
	int64			   begun[lengthof(turns)];
	Datum			   args[8];
	int				   n = 0;
	static const Oid   element[] = {INT4OID, TEXTOID,  TIMESTAMPTZOID, INT8OID,
									INT8OID, BYTEAOID, INT4OID,		   INT4OID};
	static SPIPlanPtr  plan;
	dlist_iter		   iter;
	dlist_mutable_iter gone;
	OutboxFigures	  *last = NULL;

	if (dlist_is_empty(outbox_tally_figures()))
		return;
	if (!outbox_txn_begin(true))
	{
		again_at = now + LOCKED_AGAIN;
		return;
	}
	memcpy(begun, in_turn, sizeof(begun));
	outbox_tally_sort_figures();
	dlist_foreach(iter, outbox_tally_figures())
	{
		OutboxFigures *f = dlist_container(OutboxFigures, node, iter.cur);
		bytea		  *counts;

		if (n == AT_ONCE + BLOCK || (n >= AT_ONCE && !are_of_one_row(f, last)))
			break;
		last = f;
		counts = palloc(VARHDRSZ + f->size);
		SET_VARSIZE(counts, VARHDRSZ + f->size);
		memcpy(VARDATA(counts), f->counts, f->size);
		columns[0][n] = Int32GetDatum(f->endpoint_id);
		no_tenant[n] = f->tenant == NULL;
		columns[1][n] = f->tenant ? CStringGetTextDatum(f->tenant) : (Datum) 0;
		columns[2][n] = TimestampTzGetDatum(f->at);
		columns[3][n] = Int64GetDatum(f->delivered);
		columns[4][n] = Int64GetDatum(f->failed);
		columns[5][n] = PointerGetDatum(counts);
		for (int width = 0; width < (int) lengthof(turns); width++)
		{
			int64 turn = f->at / turns[width];
			int	  piece = width * PIECES + (int) (turn % PIECES);

			if (turn > begun[width] && !begin_turn(piece, width, turn))
			{
				outbox_txn_abort();
				again_at = now + LOCKED_AGAIN;
				return;
			}
			begun[width] = Max(begun[width], turn);
			columns[6 + width][n] = Int32GetDatum(piece);
		}
		n++;
	}
	for (int c = 0; c < (int) lengthof(args); c++)
		args[c] = array_of(columns[c], c == 1 ? no_tenant : NULL, n, element[c]);
	outbox_plan_run(
		&plan,
		"INSERT INTO outbox.figures AS f"
		" SELECT r.piece, " BLOCK_OF_R ", r.at, $9, " AS_ROW
		" FROM (SELECT w.piece, w.at, " ADDED_UP
		" FROM unnest($1, $2, $3, $4, $5, $6, $7, $8) AS r (endpoint_id, tenant, at,"
		" delivered, failed, counts, piece, hour_piece)"
		" CROSS JOIN LATERAL (VALUES (r.piece, r.at),"
		" (r.hour_piece, date_trunc('hour', r.at, 'UTC'))) AS w (piece, at)"
		" GROUP BY w.piece, r.endpoint_id, w.at, r.tenant) r"
		" GROUP BY r.piece, " BLOCK_OF_R ", r.at"
		" ON CONFLICT (block, at, piece, worker) DO UPDATE"
		" SET (endpoint_ids, tenants, delivered, failed, counts) ="
		" (SELECT " AS_ROW " FROM (SELECT " ADDED_UP
		" FROM unnest(f.endpoint_ids || EXCLUDED.endpoint_ids, f.tenants || EXCLUDED.tenants,"
		" f.delivered || EXCLUDED.delivered, f.failed || EXCLUDED.failed,"
		" f.counts || EXCLUDED.counts) r (endpoint_id, tenant, delivered, failed, counts)"
		" GROUP BY r.endpoint_id, r.tenant) r)",
		arg_datum(INT4ARRAYOID, args[0]), arg_datum(TEXTARRAYOID, args[1]),
		arg_datum(TIMESTAMPTZARRAYOID, args[2]), arg_datum(INT8ARRAYOID, args[3]),
		arg_datum(INT8ARRAYOID, args[4]), arg_datum(BYTEAARRAYOID, args[5]),
		arg_datum(INT4ARRAYOID, args[6]), arg_datum(INT4ARRAYOID, args[7]),
		arg_int4(outbox_worker_number));
	OUTBOX_CRASH_POINT("figures.written");
	outbox_txn_commit();
	memcpy(in_turn, begun, sizeof(in_turn));
	dlist_foreach_modify(gone, outbox_tally_figures())
	{
		if (n-- == 0)
			break;
		outbox_tally_free_figures(dlist_container(OutboxFigures, node, gone.cur));
	}
}

/* ------------------------------------------------------------ for SQL */

/* Adds up counts.  Bytes that are none are passed over. */
static void
add_up(const bytea *counts, uint64 *sum)
{
	const uint8 *p = (const uint8 *) VARDATA_ANY(counts);
	const uint8 *end = p + VARSIZE_ANY_EXHDR(counts);

	memset(sum, 0, sizeof(uint64) * 256);
	for (; end - p >= OUTBOX_FIGURE_BYTES; p += OUTBOX_FIGURE_BYTES)
	{
		uint32 n;

		CHECK_FOR_INTERRUPTS();
		memcpy(&n, p + 1, sizeof(n));
		sum[*p] += pg_ntoh32(n);
	}
}

OUTBOX_FUNCTION(outbox_figures_sum_1_0, 1)
{
	uint64 sum[256];
	bytea *result = palloc(VARHDRSZ + lengthof(sum) * OUTBOX_FIGURE_BYTES);
	uint8 *p = (uint8 *) VARDATA(result);

	add_up(PG_GETARG_BYTEA_PP(0), sum);
	for (int i = 0; i < (int) lengthof(sum); i++)
		if (sum[i] > 0)
		{
			uint32 n = pg_hton32((uint32) Min(sum[i], PG_UINT32_MAX));

			*p = (uint8) i;
			memcpy(p + 1, &n, sizeof(n));
			p += OUTBOX_FIGURE_BYTES;
		}
	SET_VARSIZE(result, (char *) p - (char *) result);
	PG_RETURN_BYTEA_P(result);
}

static int
compare_ids(const void *a, const void *b)
{
	int32 l = *(const int32 *) a;
	int32 r = *(const int32 *) b;

	return (l > r) - (l < r);
}

/* figures_of(endpoint_ids, counts, wanted): wanted is sorted. */
OUTBOX_FUNCTION(outbox_figures_of_1_0, 3)
{
	StringInfoData found;
	ArrayType	  *wanted = PG_ARGISNULL(2) ? NULL : PG_GETARG_ARRAYTYPE_P(2);
	int			   nwanted = 0;
	Datum		  *ids, *counts;
	bool		  *no_id, *no_counts;
	int			   nids, ncounts;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || (wanted && ARR_HASNULL(wanted)))
		PG_RETURN_NULL();
	if (wanted)
		nwanted = ArrayGetNItems(ARR_NDIM(wanted), ARR_DIMS(wanted));
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT4OID, sizeof(int32), true,
					  TYPALIGN_INT, &ids, &no_id, &nids);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), BYTEAOID, -1, false, TYPALIGN_INT,
					  &counts, &no_counts, &ncounts);
	initStringInfo(&found);
	for (int i = 0; i < Min(nids, ncounts); i++)
	{
		struct varlena *one = (struct varlena *) DatumGetPointer(counts[i]);
		int32			id = DatumGetInt32(ids[i]);

		CHECK_FOR_INTERRUPTS();
		if (no_id[i] || no_counts[i])
			continue;
		if (wanted == NULL ||
			bsearch(&id, ARR_DATA_PTR(wanted), nwanted, sizeof(id), compare_ids))
			appendBinaryStringInfo(&found, VARDATA_ANY(one),
								   (int) VARSIZE_ANY_EXHDR(one));
	}
	if (found.len == 0)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text_with_len(found.data, found.len));
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

OUTBOX_FUNCTION(outbox_figures_shown_1_0, 1)
{
	static const struct
	{
		const char *name;
		double		part;
	} parts[] = {{"latency_p50_ms", 0.50},
				 {"latency_p95_ms", 0.95},
				 {"latency_p99_ms", 0.99}};
	uint64		   sum[256];
	uint32		   latencies[OUTBOX_HISTOGRAM_BUCKETS];
	int64		   total = 0;
	uint64		   n;
	StringInfoData json, classes;

	add_up(PG_GETARG_BYTEA_PP(0), sum);
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
