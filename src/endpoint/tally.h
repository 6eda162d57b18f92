#ifndef OUTBOX_TALLY_H
#define OUTBOX_TALLY_H

#include "endpoint/endpoint.h"

/*
 * For an endpoint that this worker has not served so far: takes over the deliveries
 * of the last minute that its former worker published.
 */
extern void outbox_tally_resume(OutboxEndpoint *ep);

extern void outbox_tally_success(OutboxEndpoint *ep, TimestampTz now);

/* The name and label of a counter in outbox.metrics(). */
typedef struct OutboxCounterName
{
	const char *metric; /* without "outbox_" or "outbox_endpoint_" */
	const char *label;	/* NULL: none */
} OutboxCounterName;

extern const OutboxCounterName outbox_counter_names[OUTBOX_COUNTERS];

/* Counts, for the endpoint and for the database. */
extern void outbox_tally_count(OutboxEndpoint *ep, OutboxCounter counter);
extern void outbox_tally_failure(OutboxEndpoint *ep, const OutboxOutcome *o);
extern void outbox_tally_death(OutboxEndpoint *ep, const char *reason);

/*
 * A settle has stored the counts, and its commit ends at 'lsn'.  Then, when the WAL is
 * flushed up to 'flushed', they may be shown, and the second returns true if others are shown
 * from now on.  The last is true while some wait for
 * that.
 */
extern void outbox_tally_stored(OutboxEndpoint *ep, XLogRecPtr lsn);
extern bool outbox_tally_flushed(OutboxEndpoint *ep, XLogRecPtr flushed);
extern bool outbox_tally_waits(const OutboxEndpoint *ep);

/*
 * The first makes the tally from the kept counters, if the endpoint has none.  The second
 * frees it, and keeps the counters that are not 0.  It does so only if all counters are
 * stored, and the measurements are too old to be shown.  The third forgets all.
 */
extern void outbox_tally_wake(OutboxEndpoint *ep);
extern void outbox_tally_rest(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_tally_free(OutboxEndpoint *ep);

/*
 * What endpoints did in a bucket of figures that has ended.  An entry has the number of one, the
 * length of its tenant's name (0: none), the name, the length of its counts, and the counts:
 * a byte that says which, and how many, of each that is not 0.  A number has 7 bits in a byte,
 * the lowest ones first, and the highest bit in all but its last byte.  One entry behind the
 * other is their sum.
 */
#define OUTBOX_NUMBER_BYTES 5 /* at most */

/* A row has the entries of endpoints whose numbers, divided by this, are its block. */
#define OUTBOX_FIGURES_BLOCK 64 /* outbox.figures() has this number, too */

typedef struct OutboxFigures
{
	dlist_node	   node;
	TimestampTz	   at; /* the beginning of the bucket */
	int32		   block;
	int			   n; /* entries */
	StringInfoData entries;
} OutboxFigures;

static inline uint8 *
outbox_put_number(uint8 *p, uint32 n)
{
	for (; n >= 0x80; n >>= 7)
		*p++ = (uint8) (n | 0x80);
	*p++ = (uint8) n;
	return p;
}

/* Writes a count, if it is not 0. */
static inline uint8 *
outbox_put_figure(uint8 *p, int which, int64 count)
{
	if (count <= 0)
		return p;
	*p++ = (uint8) which;
	return outbox_put_number(p, (uint32) Min(count, PG_UINT32_MAX));
}

extern void outbox_put_entry(StringInfo to, uint32 endpoint_id, const char *tenant,
							 size_t length, const uint8 *counts, size_t size);

/*
 * Which counts there are: buckets of latencies come first, then counters.  The last ones are of
 * the whole database, in the figures of no endpoint (0): how often it was looked at, the age
 * of the oldest event that waits in tenths of a second, and the memory of the workers in kB.
 */
#define OUTBOX_FIGURE_COUNTER OUTBOX_HISTOGRAM_BUCKETS
#define OUTBOX_FIGURE_LOOKS 253
#define OUTBOX_FIGURE_OLDEST 254
#define OUTBOX_FIGURE_MEMORY 255

/*
 * The figures that are to be written.  The second is the end of the oldest open bucket
 * (DT_NOEND: none is open), and the third ends the ones whose end is not after a time.  The
 * fourth adds figures of the whole database.
 */
extern dlist_head *outbox_tally_figures(void);
extern TimestampTz outbox_tally_figures_until(void);
extern void		   outbox_tally_end_open(TimestampTz until);
extern void		   outbox_tally_look(TimestampTz at, int64 oldest_usec, int64 memory);
extern void		   outbox_tally_free_figures(OutboxFigures *f);

/* True if something was delivered in the last minute. */
extern bool outbox_tally_is_recent(const OutboxEndpoint *ep, TimestampTz now);

/* Notes the words of the last failure. */
extern void outbox_tally_error(OutboxEndpoint *ep, const char *error);

/* Notes a latency: 'usec' µs from emit to success. */
extern void outbox_tally_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now);

#endif /* OUTBOX_TALLY_H */
