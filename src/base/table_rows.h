/*
 * table_rows.h
 *	  Rows of the extension's tables: the columns of one that was read, and many
 *	  that are appended.
 */
#ifndef OUTBOX_TABLE_ROWS_H
#define OUTBOX_TABLE_ROWS_H

#include "base/outbox.h"

#include "executor/spi.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

/* Of a row that was read: its columns, the first is 0. */
typedef struct OutboxColumns
{
	Datum *values;
	bool  *nulls;
} OutboxColumns;

/* Of what SPI has at hand. */
static inline OutboxColumns
fetch_row(uint64 i)
{
	int			  n = SPI_tuptable->tupdesc->natts;
	OutboxColumns row = {palloc(sizeof(Datum) * n), palloc(sizeof(bool) * n)};

	heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, row.values,
					  row.nulls);
	return row;
}

static inline char *
row_text(OutboxColumns row, int i)
{
	return row.nulls[i] ? NULL : TextDatumGetCString(row.values[i]);
}

static inline int64
row_int8(OutboxColumns row, int i)
{
	return row.nulls[i] ? 0 : DatumGetInt64(row.values[i]);
}

static inline int32
row_int4(OutboxColumns row, int i)
{
	return row.nulls[i] ? 0 : DatumGetInt32(row.values[i]);
}

static inline TimestampTz
row_time(OutboxColumns row, int i, TimestampTz otherwise)
{
	return row.nulls[i] ? otherwise : DatumGetTimestampTz(row.values[i]);
}

static inline bool
row_is(OutboxColumns row, int i, const char *what)
{
	return !row.nulls[i] && strcmp(TextDatumGetCString(row.values[i]), what) == 0;
}

extern Datum outbox_int8_array(const int64 *values, int n);

/* For qsort() and bsearch() of int64. */
extern int outbox_compare_int8(const void *a, const void *b);

/*
 * Appends rows to one of our own tables: one WAL record for a page of them.
 * The values stand one row after the other.
 */
extern void outbox_append_rows(Oid table, int nrows, Datum *values, bool *nulls);

/*
 * Inserts the row of a slot of one of our own tables, which the caller has
 * opened and locked.  Triggers that others have put on the table are called;
 * an error (09000) if one of them keeps the row out.
 */
extern void outbox_insert_row(Relation rel, TupleTableSlot *slot);

#endif /* OUTBOX_TABLE_ROWS_H */
