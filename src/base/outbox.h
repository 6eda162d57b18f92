/*
 * outbox.h
 *	  Names and limits that every folder may use, and PostgreSQL's headers that most files
 *	  need.
 *
 * The header of each file lists its functions.
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define OUTBOX_VERSION "1.0"
#define OUTBOX_SCHEMA "outbox"
#define OUTBOX_EXTENSION "outbox"

/* An error names the argument that is wrong, for a web application to show beside it. */
#define OUTBOX_INVALID(argument) \
	errcode(ERRCODE_INVALID_PARAMETER_VALUE), \
		err_generic_string(PG_DIAG_COLUMN_NAME, argument)

/* Makes room in 'array' for one more than 'n'.  NULL: it is made in 'cxt'. */
#define outbox_room(array, n, max, cxt) \
	((array) = outbox_grown(array, n, &(max), sizeof(*(array)), cxt))

static inline void *
outbox_grown(void *array, int n, int *max, size_t size, MemoryContext cxt)
{
	int more = Max(64, *max * 2);

	if (n < *max)
		return array;
	array = array ? repalloc_huge(array, size * more) :
					MemoryContextAllocHuge(cxt, size * more);
	*max = more;
	return array;
}

/*
 * Makes 'low', which is 0, the first of 'n' places in order of which 'before' is not true,
 * an expression of 'place'.
 */
#define outbox_find_place(low, n, place, before) \
	for (int high_ = (n), place; low < high_;) \
	{ \
		place = low + (high_ - low) / 2; \
		if (before) \
			low = place + 1; \
		else \
			high_ = place; \
	}

/* Limits that the documents state, in bytes. */
#define OUTBOX_MAX_TOPIC 255
#define OUTBOX_MAX_TYPE 255
#define OUTBOX_MAX_KEY 1024
#define OUTBOX_MAX_TENANT 255
#define OUTBOX_MAX_DEDUP_KEY 1024
#define OUTBOX_MAX_HEADERS 8192 /* names and values of an event, or endpoint, together */
#define OUTBOX_MAX_TOPICS 1000	/* patterns of an endpoint */
#define OUTBOX_MAX_FILTER 2048	/* bytes, as pg_column_size() has them */

/*
 * Some receivers read at most 100 header lines, the empty line included (Python's
 * http.server).  Our own are 25 in cloudevents-binary, with a tenant and in a request that
 * an operator has asked for.  There an event's headers are sent twice: 25 + 2 * 29 + 15 =
 * 98, without the empty line.
 */
#define OUTBOX_MAX_EVENT_HEADERS 29
#define OUTBOX_MAX_ENDPOINT_HEADERS 15
#define OUTBOX_MAX_NESTING 512 /* depth of nested objects and arrays in a payload */

/* The log is a fixed set of tables, used in turn.  See retention.c. */
#define OUTBOX_LOG_PIECES 3

#endif /* OUTBOX_H */
