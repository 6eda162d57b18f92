/*
 * tally.c
 *	  Owns what is counted of an endpoint's deliveries: rates and latencies.
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

	/* A second in the future means that the clock was set back. */
	if (!outbox_stats_fetch(MyDatabaseId, ep->id, &s) ||
		s.recent_second > GetCurrentTimestamp() / USECS_PER_SEC)
		return;
	ep->tally.recent_second = s.recent_second;
	memcpy(ep->tally.recent, s.recent, sizeof(ep->tally.recent));
}

void
outbox_tally_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now)
{
	int64 minute = now / USECS_PER_MINUTE;
	int	  row = minute % OUTBOX_HISTOGRAM_MINUTES;
	int	  bucket;

	if (ep->tally.latency == NULL)
		ep->tally.latency = MemoryContextAllocZero(ep->cxt, sizeof(OutboxHistogram));
	if (ep->tally.latency->minute[row] != minute)
	{
		memset(ep->tally.latency->count[row], 0, sizeof(ep->tally.latency->count[row]));
		ep->tally.latency->minute[row] = minute;
	}
	/* four buckets for each doubling, from 1 µs on */
	bucket = usec <= 1 ? 0 : (int) (log2((double) usec) * 4);
	ep->tally.latency->count[row][Min(bucket, OUTBOX_HISTOGRAM_BUCKETS - 1)]++;
}

void
outbox_tally_success(OutboxEndpoint *ep, TimestampTz now)
{
	int64 second = now / USECS_PER_SEC;

	for (int64 s = Max(ep->tally.recent_second + 1, second - 59); s <= second; s++)
		ep->tally.recent[s % 60] = 0;
	ep->tally.recent_second = Max(ep->tally.recent_second, second);
	ep->tally.recent[second % 60]++;
	ep->tally.delivered++;
	ep->tally.last_success_at = now;
}
