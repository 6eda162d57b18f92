/*
 * endpoint_stats.h
 *	  What outbox.stats shows of an endpoint.
 */
#ifndef OUTBOX_ENDPOINT_STATS_H
#define OUTBOX_ENDPOINT_STATS_H

#include "endpoint/endpoint.h"

extern void outbox_endpoint_stats_fill(OutboxEndpoint *ep, TimestampTz now,
									   OutboxStats *s);

#endif /* OUTBOX_ENDPOINT_STATS_H */
