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
	OUTBOX_FILTER_ERROR,   /* neither true nor false: a dead delivery */
	OUTBOX_FILTER_TOO_LONG /* another one */
} OutboxFilterResult;

/* What one evaluation may take of a worker's CPU. */
#define OUTBOX_FILTER_MAX_MS 100

/* From now on it may, in this process: a worker. */
extern void outbox_filter_limit_time(void);

/* 'payload' NULL: bytes, which no predicate is true of. Needs a transaction. */
extern OutboxFilterResult outbox_filter(JsonPath *filter, Jsonb *payload);

#endif /* OUTBOX_FILTER_H */
