/*
 * tally.c
 *	  Owns what an endpoint counts of its deliveries: rates and latencies.
 */
#include "base/outbox.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "endpoint/tally.h"

void
outbox_tally_resume(OutboxEndpoint *ep)
{
	OutboxStats s;

	/* Seconds of the future are from before the clock was set back. */
	if (!outbox_stats_fetch(MyDatabaseId, ep->id, &s) ||
		s.recent_second > GetCurrentTimestamp() / USECS_PER_SEC)
		return;
	ep->recent_second = s.recent_second;
	memcpy(ep->recent, s.recent, sizeof(ep->recent));
}

void
outbox_tally_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now)
{
	int64		minute = now / USECS_PER_MINUTE;
	int			row = minute % OUTBOX_HISTOGRAM_MINUTES;
	int			bucket;

	if (ep->latency == NULL)
		ep->latency = MemoryContextAllocZero(ep->cxt, sizeof(OutboxHistogram));
	if (ep->latency->minute[row] != minute)
	{
		memset(ep->latency->count[row], 0, sizeof(ep->latency->count[row]));
		ep->latency->minute[row] = minute;
	}
	/* four buckets for each doubling, from 1 µs on */
	bucket = usec <= 1 ? 0 : (int) (log2((double) usec) * 4);
	ep->latency->count[row][Min(bucket, OUTBOX_HISTOGRAM_BUCKETS - 1)]++;
}

void
outbox_tally_success(OutboxEndpoint *ep, TimestampTz now)
{
	int64		second = now / USECS_PER_SEC;

	for (int64 s = Max(ep->recent_second + 1, second - 59); s <= second; s++)
		ep->recent[s % 60] = 0;
	ep->recent_second = Max(ep->recent_second, second);
	ep->recent[second % 60]++;
	ep->delivered++;
	ep->last_success_at = now;
}
