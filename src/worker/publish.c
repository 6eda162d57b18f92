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

#include "endpoint/endpoint.h"
#include "endpoint/endpoint_stats.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "store/settle.h"
#include "store/totals.h"
#include "worker/busy.h"
#include "worker/dispatch.h"
#include "worker/loop.h"
#include "worker/publish.h"
#include "worker/reader.h"

/*
 * µs after its last activity for which outbox.stats has latencies of an endpoint.
 */
#define FORGET_LATENCY_AFTER \
	(OUTBOX_HISTOGRAM_MINUTES * USECS_PER_MINUTE + USECS_PER_MINUTE)

#define PUBLISH_EVERY (100 * 1000) /* µs */

static TimestampTz published_at;
static TimestampTz publish_at = DT_NOEND; /* when what was left out is to be published */

/*
 * An endpoint that rests publishes what it counts, and forgets what it measured of
 * latencies, at these times (µs).
 */
#define PUBLISH_RESTING_EVERY (60 * USECS_PER_SEC)

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
 * Returns until when the endpoint needs nothing, unless something else happens to it:
 * an event, an answer, a command, or new settings.  0: it needs something now.  It is
 * one that has just been published.
 */
static TimestampTz
rests_until(OutboxEndpoint *ep, TimestampTz now)
{
	TimestampTz until = DT_NOEND;
	bool		waits = outbox_status_is_off(ep) || ep->pace.retry_at > now;

	if (ep->member.dropped || ep->member.recreate || ep->status.unstorable ||
		outbox_settle_wants(ep) || outbox_settle_lags(ep) || ep->feed.drop_window ||
		!ep->feed.counted || outbox_loop.head.reading != NULL ||
		ep->queue.nin_flight > 0 || ep->table.unblocking ||
		!dlist_is_empty(&ep->queue.loading) || !dlist_is_empty(&ep->queue.asking) ||
		!dlist_is_empty(&ep->queue.parking))
		return 0;

	if (ep->link.handle) /* links.c examines it in each round */
		return 0;

	/* It has something to send or to read, and nothing that keeps it from doing so. */
	if (!waits &&
		(!ep->feed.attached || ep->queue.nready > 0 || ep->feed.window_count > 0))
		return 0;
	if (outbox_reader_has_work_for(ep, now) || outbox_endpoint_lacks_memory(ep, now) ||
		outbox_step_failed_for(ep->id))
		return 0;

	until = outbox_dispatch_next_time(ep, now);
	if (outbox_is_quiet(ep) && !ep->place.shared)
		until = Min(until, outbox_settle_shares_at(ep));
	if (outbox_tally_waits(ep))
		until = Min(until, now + PUBLISH_EVERY);
	if (ep->tally.latency)
		until = Min(until, now + PUBLISH_RESTING_EVERY);
	until = Min(until, outbox_status_failing_at(ep));
	return until <= now ? 0 : until;
}

/*
 * An endpoint that has become quiet is published at once.  It leaves the list when it
 * needs nothing.
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
		TimestampTz		until;

		outbox_status_check_failing(ep, now);
		outbox_tally_flushed(ep, flushed);
		if (outbox_tally_waits(ep))
			publish_at = Min(publish_at, now + PUBLISH_EVERY);
		if (ep->tally.latency && now - ep->tally.last_active_at > FORGET_LATENCY_AFTER)
		{
			pfree(ep->tally.latency);
			ep->tally.latency = NULL;
		}
		if (tell)
			outbox_publish_one(ep, now);
		else
			publish_at = Min(publish_at, published_at + PUBLISH_EVERY);
		ep->member.published_quiet = quiet;
		if (ep->config.retired_cxt)
		{
			MemoryContextDelete(ep->config.retired_cxt);
			ep->config.retired_cxt = NULL;
		}
		if (!tell)
			continue;
		until = rests_until(ep, now);
		if (until == 0)
			continue;
		if (ep->feed.window_count == 0)
			outbox_window_free(ep);
		outbox_busy_rest(ep, until);
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
