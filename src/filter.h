/*
 * filter.h
 *	  Predicates over payloads, written as jsonpath.
 */
#ifndef OUTBOX_FILTER_H
#define OUTBOX_FILTER_H

#include "outbox.h"

#include "utils/jsonb.h"
#include "utils/jsonpath.h"

typedef enum OutboxFilterResult
{
	OUTBOX_FILTER_NO,
	OUTBOX_FILTER_YES,
	OUTBOX_FILTER_ERROR			/* neither true nor false: a dead delivery */
} OutboxFilterResult;

/* 'payload' NULL: bytes, which no predicate is true of. Needs a transaction. */
extern OutboxFilterResult outbox_filter(JsonPath *filter, Jsonb *payload);

#endif							/* OUTBOX_FILTER_H */
