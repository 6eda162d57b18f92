#ifndef OUTBOX_ENDPOINT_STATS_H
#define OUTBOX_ENDPOINT_STATS_H

#include "endpoint/endpoint.h"

/* Names of states, as views show them. */
extern const char *const outbox_endpoint_states[OUTBOX_ENDPOINT_STATES];

extern void outbox_endpoint_stats_fill(OutboxEndpoint *ep, TimestampTz now,
									   OutboxStats *s);

/* ms: the latency that a part of 'total' is at most, of counts in buckets (-1: none). */
extern double outbox_percentile(const uint32 *counts, int64 total, double part);

/* Returns the deliveries per second of the minute before 'now'. */
extern double outbox_endpoint_stats_rate(const uint32 *recent, int64 newest,
										 TimestampTz now);

#endif /* OUTBOX_ENDPOINT_STATS_H */
