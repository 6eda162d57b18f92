/*
 * attempt_run.h
 *	  A run: successful attempts of one endpoint, packed side by side in the order of their
 *	  events, so that a table needs one row for many of them.
 */
#ifndef OUTBOX_ATTEMPT_RUN_H
#define OUTBOX_ATTEMPT_RUN_H

#include "base/outbox.h"

#include "utils/uuid.h"

/* The packed fields of one attempt. */
typedef struct OutboxRunAttempt
{
	int64		seq;
	TimestampTz started_at;
	float		duration; /* ms */
	pg_uuid_t	event_id;
} OutboxRunAttempt;

/*
 * A run lies between the number of its first event and that number plus
 * OUTBOX_RUN_SPAN, so a search for an event reads a bounded part of an index.
 */
#define OUTBOX_RUN_SPAN 4095

/* Attempts in a run at most: four rows fill a page. */
#define OUTBOX_RUN_MOST 75

#define OUTBOX_RUN_ENTRY 26 /* bytes of one attempt */

/* True if the attempt can be in a run that begins with this event, at this time. */
static inline bool
outbox_run_takes(int64 seq_low, TimestampTz started_at, int64 seq, TimestampTz at)
{
	int64 distance = at - started_at;

	return seq >= seq_low && seq - seq_low <= OUTBOX_RUN_SPAN &&
		distance >= PG_INT32_MIN && distance <= PG_INT32_MAX;
}

/*
 * Writes OUTBOX_RUN_ENTRY bytes, and returns the place behind them.  The run takes the
 * attempt, and the one before has no higher number.
 */
extern uint8 *outbox_run_put(uint8 *p, int64 seq_low, TimestampTz started_at,
							 const OutboxRunAttempt *attempt);

/* A run that is read.  The row's values may be any. */
typedef struct OutboxRun
{
	int64		 seq_low;
	TimestampTz	 started_at;
	const uint8 *entries;
	int			 n;
} OutboxRun;

/* False: this many bytes are no run. */
extern bool outbox_run_open(OutboxRun *run, int64 seq_low, TimestampTz started_at,
							const void *entries, size_t size);

/*
 * Returns the number of the first attempt whose event does not have a lower number.
 * The result is 'n' if there is none.
 */
extern int outbox_run_find(const OutboxRun *run, int64 seq);

/*
 * Reads attempt 'i', which is below n.  False: these bytes are no attempt, or it is not
 * in the order of events.
 */
extern bool outbox_run_get(const OutboxRun *run, int i, OutboxRunAttempt *attempt);

#endif /* OUTBOX_ATTEMPT_RUN_H */
