/*
 * filter.h
 *	  Predicates over payloads, written as jsonpath.
 */
#ifndef OUTBOX_FILTER_H
#define OUTBOX_FILTER_H

#include "base/outbox.h"

#include "utils/jsonb.h"
#include "utils/jsonpath.h"

typedef enum OutboxFilterResult
{
	OUTBOX_FILTER_NO,
	OUTBOX_FILTER_YES,
	OUTBOX_FILTER_ERROR,   /* neither true nor false: the delivery is dead */
	OUTBOX_FILTER_TOO_LONG /* out of time: the delivery is dead */
} OutboxFilterResult;

/* Milliseconds of a worker's CPU that one evaluation may take. */
#define OUTBOX_FILTER_MAX_MS 100

/*
 * Makes the limit hold in this process, a worker.  Throws an error if the system
 * refuses the timer.
 */
extern void outbox_filter_limit_time(void);

/*
 * Evaluates the filter.  'payload' is NULL if it is bytes: no filter is true of
 * these.  Needs a transaction.  Throws an error only for a cancel or a lack of
 * resources.
 */
extern OutboxFilterResult outbox_filter(JsonPath *filter, Jsonb *payload);

#endif /* OUTBOX_FILTER_H */
