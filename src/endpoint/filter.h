#ifndef OUTBOX_FILTER_H
#define OUTBOX_FILTER_H

#include "base/outbox.h"

#include "utils/jsonb.h"
#include "utils/jsonpath.h"

typedef enum OutboxFilterResult
{
	OUTBOX_FILTER_NO,
	OUTBOX_FILTER_YES,
	OUTBOX_FILTER_ERROR,	/* neither true nor false: the delivery is dead */
	OUTBOX_FILTER_TOO_LONG, /* for the payload's size: the delivery is dead */
	OUTBOX_FILTER_LATER		/* it has not been evaluated yet */
} OutboxFilterResult;

/*
 * The length of a filter in bytes, times the elements of a payload's arrays.  So many bytes
 * of the payload count as one element.  The worst filter and payload then take about so many
 * µs.  One is long from 1/OUTBOX_FILTER_LONG of that on.
 */
#define OUTBOX_FILTER_MAX_WORK (UINT64CONST(2) * 1024 * 1024)
#define OUTBOX_FILTER_BYTES 256
#define OUTBOX_FILTER_MAX_TIME 5000
#define OUTBOX_FILTER_LONG 16

/* Characters of a number in a filter, and operators of a filter that calculate. */
#define OUTBOX_FILTER_MAX_DIGITS 40
#define OUTBOX_FILTER_MAX_OPERATORS 8

/* Throws an error for a filter that has no form of README.md, or is too long. */
extern void outbox_filter_check(JsonPath *path);

/* Returns the filter as it may be evaluated: once, where it is read from a table. */
extern JsonPath *outbox_filter_usable(JsonPath *filter);

/*
 * Evaluates the filter, which outbox_filter_usable() has returned.  'payload' is NULL if it is
 * bytes: no filter is true of these.  Throws an error only for a cancel or a lack of
 * memory.
 */
extern OutboxFilterResult outbox_filter(JsonPath *filter, Jsonb *payload);

/* Returns about how many µs that takes at most.  0: it is not long, or too long. */
extern int64 outbox_filter_time(JsonPath *filter, Jsonb *payload);

#endif /* OUTBOX_FILTER_H */
