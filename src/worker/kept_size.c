/*
 * kept_size.c
 *	  Owns how many bytes are kept for a tenant that has the limit max_kept_bytes.
 *
 * The number of rows is known, and not the size of each.  So the sizes of all rows
 * are read once, in slices, and afterwards the ones of new rows, which have higher numbers.
 * A row that goes is taken to have the mean size, because its own is not known any more.
 * If many rows have gone or come out of order, all sizes are read again.
 */
#include "base/outbox.h"

#include "base/query.h"
#include "worker/kept_size.h"

/* Rows whose sizes are read at a time. */
#define SLICE_ROWS 300

/* All sizes are read again after 1/GUESSED of them were guessed. */
#define GUESSED 8

int64
outbox_kept_size(const OutboxTenant *t)
{
	const OutboxKeptLimit *kept = t->kept;

	return kept->sized > 0 ? (int64) ((double) kept->bytes / kept->sized * kept->rows) :
							 0;
}

bool
outbox_kept_size_is_due(const OutboxTenant *t)
{
	return t->kept->most.bytes > 0 && t->kept->rows > 0 && !t->kept->complete;
}

void
outbox_kept_size_left(OutboxTenant *t, int64 rows, int64 bytes)
{
	OutboxKeptLimit *kept = t->kept;

	if (kept->most.bytes == 0 || bytes == 0)
		return;
	kept->rows -= rows;
	kept->sized = Max(kept->sized - rows, 0);
	kept->bytes = Max(kept->bytes - bytes, 0);
}

static void
begin_again(OutboxKeptLimit *kept, OutboxEndpoint **endpoints, int n)
{
	for (int i = 0; i < n; i++)
		endpoints[i]->table->sized = 0;
	kept->sized = kept->bytes = kept->changed = 0;
	kept->complete = false;
}

/* Rows that have gone since are taken to have the mean size. */
static void
notice_gone(OutboxKeptLimit *kept)
{
	if (kept->rows >= kept->sized)
		return;
	kept->changed += kept->sized - kept->rows;
	kept->bytes = (int64) ((double) kept->bytes / kept->sized * kept->rows);
	kept->sized = kept->rows;
}

/*
 * The endpoints come one after another, each from its own place on.  The inner LIMIT is
 * for the planner, which without statistics would read all rows of one endpoint.
 */
static void
read_sizes(OutboxEndpoint **endpoints, int n)
{
	static SPIPlanPtr plan;
	Datum			 *ids = palloc(sizeof(Datum) * n);
	int64			 *from = palloc(sizeof(int64) * n);

	for (int i = 0; i < n; i++)
	{
		ids[i] = Int32GetDatum(endpoints[i]->id);
		from[i] = endpoints[i]->table->sized;
	}
	outbox_plan_run(&plan,
					"SELECT i.n, p.seq, " OUTBOX_KEPT_SIZE
					" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2))"
					" WITH ORDINALITY i(id, seq, n) CROSS JOIN LATERAL"
					" (SELECT k.seq, k.event_id FROM outbox.parked k"
					" WHERE k.endpoint_id = i.id AND k.seq > i.seq"
					" AND k.status <> 'cancelled' ORDER BY k.seq LIMIT $3) p LIMIT $3",
					arg_datum(INT4ARRAYOID, outbox_array(ids, n, INT4OID)),
					arg_int8s(from, n), arg_int8(SLICE_ROWS));
}

void
outbox_kept_size_read(OutboxTenant *t, OutboxEndpoint **endpoints, int n)
{
	OutboxKeptLimit *kept = t->kept;

	if (kept->most.bytes == 0)
		return;
	notice_gone(kept);
	if (kept->complete && kept->changed > kept->rows / GUESSED)
		begin_again(kept, endpoints, n);
	read_sizes(endpoints, n);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		OutboxParkedRows *table;
		int64			  e;
		int64			  seq;
		int32			  bytes;

		outbox_read_row(i, into_int8(&e), into_int8(&seq), into_int4(&bytes));
		table = endpoints[e - 1]->table;
		table->sized = Max(table->sized, seq);
		kept->bytes += bytes;
		kept->sized++;
	}
	kept->complete = SPI_processed < SLICE_ROWS;

	/* Rows that have come with lower numbers are taken to have the mean size. */
	if (kept->complete && kept->sized < kept->rows)
		kept->changed += kept->rows - kept->sized;
}
