#ifndef OUTBOX_TABLE_ROWS_H
#define OUTBOX_TABLE_ROWS_H

#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

/* The columns of a row that was read, from 'first' on. */
typedef struct OutboxColumns
{
	Datum	 *values;
	bool	 *nulls;
	TupleDesc desc;
	int		  first;
} OutboxColumns;

/* Returns row 'i' of the last statement of the present SPI connection. */
static inline OutboxColumns
fetch_row(uint64 i)
{
	TupleDesc	  desc = SPI_tuptable->tupdesc;
	OutboxColumns row = {palloc(sizeof(Datum) * desc->natts),
						 palloc(sizeof(bool) * desc->natts), desc, 0};

	heap_deform_tuple(SPI_tuptable->vals[i], desc, row.values, row.nulls);
	return row;
}

/* Where a column of a type goes.  If it is NULL, all bits of the place become 0. */
typedef struct OutboxInto
{
	Oid	  type;
	void *place;
} OutboxInto;

/*
 * Read the columns of a row, or the first ones of them, in their order:
 * outbox_read_row(i, into_int8(&seq), into_text(&key)).  They return how many were read, and
 * throw if a column has another type.
 */
#define outbox_read_row(i, ...) outbox_read_columns(fetch_row(i), __VA_ARGS__)
#define outbox_read_columns(row, ...) \
	outbox_read_into(row, (OutboxInto[]){__VA_ARGS__, {0}})
extern int outbox_read_into(OutboxColumns row, const OutboxInto *into);

#define OUTBOX_INTO(name, ctype, oid) \
	static inline OutboxInto into_##name(ctype *place) \
	{ \
		return (OutboxInto){oid, place}; \
	}
OUTBOX_INTO(bool, bool, BOOLOID)
OUTBOX_INTO(int2, int16, INT2OID)
OUTBOX_INTO(int4, int32, INT4OID)
OUTBOX_INTO(int8, int64, INT8OID)
OUTBOX_INTO(float8, double, FLOAT8OID)
OUTBOX_INTO(time, TimestampTz, TIMESTAMPTZOID)
OUTBOX_INTO(tid, ItemPointerData, TIDOID)
OUTBOX_INTO(uuid, pg_uuid_t, UUIDOID)
OUTBOX_INTO(xid, TransactionId, XIDOID)
OUTBOX_INTO(xid8, uint64, XID8OID)

/* The places are a string's pointer, and that of a value of another varying length. */
#define into_text(string) ((OutboxInto){TEXTOID, string})
#define into_varlena(type, pointer) ((OutboxInto){type, pointer})

/*
 * Returns an array of 'n' elements, none of which is NULL, of type int4, int8, text, uuid or
 * tid.  It needs no transaction.
 */
extern Datum outbox_array(const Datum *elems, int n, Oid type);

/* Returns a bigint[] of 'n' values. */
extern Datum outbox_int8_array(const int64 *values, int n);

/* Returns the strings of a text[], without elements that are NULL. */
extern char **outbox_text_array(ArrayType *array, int *n);

/* For qsort() and bsearch() of int64, or of structs that begin with one. */
extern int outbox_compare_int8(const void *a, const void *b);

/* Rows that are appended to a table: the columns of the first one, of the second one ... */
typedef struct OutboxRows
{
	size_t n; /* columns */
	size_t max;
	Datum *values;
	bool  *nulls;
} OutboxRows;

/* Add the next column. */
extern void outbox_put_column(OutboxRows *rows, Datum value, bool null);
#define put_value(rows, value) outbox_put_column(rows, value, false)
#define put_null(rows) outbox_put_column(rows, (Datum) 0, true)
#define put_if(rows, there, value) ((there) ? put_value(rows, value) : put_null(rows))

static inline void
put_text(OutboxRows *rows, const char *text) /* NULL: the column is NULL */
{
	put_if(rows, text != NULL, CStringGetTextDatum(text));
}

/* Returns the row from a function, or moves it into the set that the function returns. */
extern Datum outbox_return_row(FunctionCallInfo fcinfo, const OutboxRows *row);
extern void	 outbox_add_row(FunctionCallInfo fcinfo, OutboxRows *row);

/*
 * Throws (55000) if the table has a column behind the first 'n'.  Columns that were dropped
 * do not count.
 */
extern void outbox_expect_no_more_columns(Oid table, int n);

/*
 * Returns an array of the rows, which are rows of the table with its first 'columns', and
 * its type in '*type': an argument for a statement that writes all of them.
 */
extern Datum outbox_rows_array(Oid table, int columns, const OutboxRows *rows, Oid *type);

/*
 * Appends rows of the first 'columns' to one of the extension's tables, with one WAL
 * record for a page of them.  The caller has locked the table.  Returns how many.
 */
extern int outbox_append_rows(Oid table, int columns, const OutboxRows *rows);

/*
 * Inserts the row of a slot into one of the extension's tables, which the caller has
 * opened and locked.  Triggers that others have put on the table are called.  Throws
 * (09000) if one of them does not return the row.
 */
extern void outbox_insert_row(Relation rel, TupleTableSlot *slot);

#endif /* OUTBOX_TABLE_ROWS_H */
