/*
 * publish.c
 *	  Owns when what outbox.stats shows of an endpoint is published, and when an
 *	  endpoint with nothing left to do leaves the list of those that are not idle.
 */
#include "base/outbox.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "endpoint/endpoint_stats.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "store/parked.h"
#include "store/totals.h"
#include "worker/loop.h"
#include "worker/publish.h"
#include "worker/reader.h"
#include "worker/roster.h"

/*
 * µs after its last activity for which outbox.stats has latencies of an endpoint.
 */
#define FORGET_LATENCY_AFTER \
	(OUTBOX_HISTOGRAM_MINUTES * USECS_PER_MINUTE + USECS_PER_MINUTE)

#define PUBLISH_EVERY (100 * 1000) /* µs */

static TimestampTz published_at;
static TimestampTz publish_at = DT_NOEND; /* when what was left out is to be published */

bool
outbox_is_quiet(OutboxEndpoint *ep)
{
	return ep->feed.attached && ep->feed.counted && ep->feed.window_count == 0 &&
		ep->queue.nheld == 0 && ep->queue.nsettling == 0 && ep->queue.nin_flight == 0 &&
		ep->queue.nready == 0 && dlist_is_empty(&ep->queue.loading) &&
		dlist_is_empty(&ep->queue.asking) && !ep->table.unblocking;
}

TimestampTz
outbox_publish_next_time(void)
{
	return publish_at;
}

void
outbox_publish_one(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxStats s;

	outbox_endpoint_stats_fill(ep, now, &s);
	s.pending_exact = s.pending_exact && outbox_loop.head.reading == NULL;
	s.key.dboid = MyDatabaseId;
	outbox_stats_publish(&s);
}

/*
 * An endpoint that has become quiet is published at once.  It leaves the list when
 * its position is the shared one.
 */
void
outbox_publish(TimestampTz now)
{
	bool			   all = now - published_at >= PUBLISH_EVERY;
	XLogRecPtr		   flushed = GetFlushRecPtr(NULL);
	dlist_mutable_iter iter;

	outbox_totals_flushed(flushed);
	publish_at = outbox_totals_wait() ? now + PUBLISH_EVERY : DT_NOEND;
	dlist_foreach_modify(iter, &outbox_loop.roster.busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, member.busy_node, iter.cur);
		bool			quiet = outbox_is_quiet(ep);
		bool			tell = all || (quiet && !ep->member.published_quiet);

		outbox_status_check_failing(ep, now);
		outbox_tally_flushed(ep, flushed);
		if (outbox_tally_waits(ep))
			publish_at = Min(publish_at, now + PUBLISH_EVERY);
		if (tell)
			outbox_publish_one(ep, now);
		else
			publish_at = Min(publish_at, published_at + PUBLISH_EVERY);
		ep->member.published_quiet = quiet;
		if (tell && quiet && ep->place.shared && !ep->place.dirty &&
			!outbox_tally_waits(ep) && ep->queue.nretries == 0 &&
			!outbox_parked_wants_look(ep) && !ep->member.recreate && !ep->link.handle &&
			(ep->tally.latency == NULL ||
			 now - ep->tally.last_active_at > FORGET_LATENCY_AFTER))
		{
			dlist_delete(&ep->member.busy_node);
			ep->member.busy = false;
			outbox_window_free(ep);
		}
		if (ep->config.retired_cxt)
		{
			MemoryContextDelete(ep->config.retired_cxt);
			ep->config.retired_cxt = NULL;
		}
	}
	if (all)
	{
		published_at = now;

		/*
		 * For autovacuum and pg_stat_all_tables.  This function limits its own
		 * rate.
		 */
		(void) pgstat_report_stat(false);
	}
}
