/*
 * table_rows.h
 *	  Reading the columns of a row, and appending rows to the extension's tables.
 */
#ifndef OUTBOX_TABLE_ROWS_H
#define OUTBOX_TABLE_ROWS_H

#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

/* The columns of a row that was read.  The first has number 0. */
typedef struct OutboxColumns
{
	Datum *values;
	bool  *nulls;
} OutboxColumns;

/*
 * A file lists the columns of a statement once, as COLUMNS(first, next), where
 * first(NUMBER, "expression") is the first of them and next() each other.  The list makes
 * the enum of their numbers, and the columns of the SELECT.
 */
#define OUTBOX_COLUMN_NUMBER(number, sql) number,
#define OUTBOX_FIRST_COLUMN(number, sql) sql
#define OUTBOX_NEXT_COLUMN(number, sql) ", " sql
#define OUTBOX_COLUMN_NUMBERS(columns) columns(OUTBOX_COLUMN_NUMBER, OUTBOX_COLUMN_NUMBER)
#define OUTBOX_SELECT(columns) "SELECT " columns(OUTBOX_FIRST_COLUMN, OUTBOX_NEXT_COLUMN)

/* Returns row 'i' of the last statement of the present SPI connection. */
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

static inline double
row_float8(OutboxColumns row, int i)
{
	return row.nulls[i] ? 0 : DatumGetFloat8(row.values[i]);
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

/* Returns a bigint[] of 'n' values. */
extern Datum outbox_int8_array(const int64 *values, int n);

/* For qsort() and bsearch() of int64. */
extern int outbox_compare_int8(const void *a, const void *b);

/*
 * Appends rows to one of the extension's tables, with one WAL record for a page of them.
 * 'values' and 'nulls' have the columns of the first row, then the columns of the second,
 * and so on.  The caller has locked the table.
 */
extern void outbox_append_rows(Oid table, int nrows, Datum *values, bool *nulls);

/*
 * Inserts the row of a slot into one of the extension's tables, which the caller has
 * opened and locked.  Triggers that others have put on the table are called.  Throws
 * (09000) if one of them does not return the row.
 */
extern void outbox_insert_row(Relation rel, TupleTableSlot *slot);

#endif /* OUTBOX_TABLE_ROWS_H */
