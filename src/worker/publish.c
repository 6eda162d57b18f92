/*
 * publish.c
 *	  Owns when the figures of an endpoint in outbox.stats are published, and
 *	  when an endpoint with nothing left to do leaves the list of endpoints that
 *	  are not idle.
 */
#include "base/outbox.h"

#include "access/xlog.h"
#include "pgstat.h"

#include "endpoint/endpoint.h"
#include "endpoint/endpoint_stats.h"
#include "endpoint/packed_settings.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "store/settle.h"
#include "store/totals.h"
#include "worker/busy.h"
#include "worker/challenges.h"
#include "worker/dispatch.h"
#include "worker/laggards.h"
#include "worker/loop.h"
#include "worker/publish.h"
#include "worker/reader.h"
#include "worker/slots.h"

/*
 * µs after its last activity for which outbox.stats has latencies of an endpoint.
 */
#define FORGET_LATENCY_AFTER \
	(OUTBOX_HISTOGRAM_MINUTES * USECS_PER_MINUTE + USECS_PER_MINUTE)

#define PUBLISH_EVERY (100 * 1000) /* µs */

/*
 * So many endpoints are published in one round, and the rest in the next ones.  So many
 * are published before PUBLISH_EVERY is over because they have become quiet.
 */
#define PUBLISH_AT_ONCE Max(128, outbox_loop.roster.nopen / 16)
#define PUBLISH_QUIET 32

static TimestampTz published_at;
static int		   left;	   /* open endpoints whose turn has not come since then */
static int		   quiet_ones; /* published since then because they had become quiet */

/* One that lacks memory says so until it does not, and publishes that at these times. */
#define PUBLISH_LACK_EVERY USECS_PER_SEC

/*
 * An endpoint that is idle publishes its counters, and forgets its rates and latencies,
 * at these times (µs).  Then it may rest.
 */
#define PUBLISH_IDLE_EVERY (60 * USECS_PER_SEC)

bool
outbox_is_quiet(OutboxEndpoint *ep)
{
	return outbox_is_attached(ep) && outbox_is_counted(ep) &&
		ep->feed->window_count == 0 && ep->queue->nheld == 0 &&
		ep->queue->nsettling == 0 && ep->queue->nin_flight == 0 &&
		ep->queue->nready == 0 && dlist_is_empty(&ep->queue->loading) &&
		dlist_is_empty(&ep->queue->asking) && !ep->table->unblocking;
}

void
outbox_publish_one(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxStats s;

	outbox_endpoint_stats_fill(ep, now, &s);
	s.pending_exact = s.pending_exact && outbox_loop.head.reading == NULL;
	s.key.dboid = MyDatabaseId;
	s.pid = MyProcPid;
	outbox_stats_publish(&s);
}

/*
 * True if the endpoint has something to send, and nothing will happen to it that says
 * when it can be sent: no answer, no settle, no slot that is given back.
 */
static bool
must_try_again(OutboxEndpoint *ep)
{
	if (!outbox_window_has_something(ep) || outbox_window_is_blocked(ep))
		return false;
	return !outbox_loop.traffic.all_durable ||
		(ep->queue->nin_flight == 0 && ep->queue->nsettling == 0 &&
		 !outbox_slots_waits(ep));
}

/* An endpoint waits in turn to be read for, and to follow the shared position. */
static void
take_turns(OutboxEndpoint *ep, TimestampTz now, bool quiet)
{
	if (ep->member.dropped || ep->member.recreate)
		return;
	outbox_laggards_take_turns(ep, now);
	if (quiet && !ep->place.shared && outbox_settle_shares_at(ep) <= now)
		outbox_turn_add(OUTBOX_TURN_SHARE, ep);
	else
		outbox_turn_remove(OUTBOX_TURN_SHARE, ep);
}

/*
 * Returns until when the rounds have nothing to do for the endpoint, unless something
 * else happens to it (busy.c).  0: they have something to do now.
 */
static TimestampTz
waits_until(OutboxEndpoint *ep, TimestampTz now, bool quiet)
{
	TimestampTz until;
	bool		allowed = outbox_loop.traffic.sending_allowed;
	bool		shut = !allowed || outbox_status_is_off(ep) || ep->status.unstorable ||
		ep->link->state == OUTBOX_LINK_DOWN;

	if (ep->lists->touched || ep->member.dropped || ep->member.recreate ||
		ep->feed->drop_window || ep->table->unblocking ||
		(!shut && !dlist_is_empty(&ep->queue->loading)) ||
		!dlist_is_empty(&ep->queue->asking))
		return 0;
	if (outbox_enabled && outbox_reader_has_work_for(ep, now))
		return 0;

	until = allowed ? outbox_dispatch_next_time(ep, now) : DT_NOEND;
	if (until == DT_NOEND && !shut && must_try_again(ep))
		return 0;
	if (quiet && !ep->place.shared &&
		!outbox_is_listed(&ep->lists->turn_node[OUTBOX_TURN_SHARE]))
		until = Min(until, outbox_settle_shares_at(ep));
	if (ep->tally->latency || ep->tally->figures_until > now ||
		outbox_tally_is_recent(ep, now))
		until = Min(until, now + PUBLISH_IDLE_EVERY);
	if (outbox_endpoint_lacks(ep, now))
		until = Min(until, now + PUBLISH_LACK_EVERY);
	if (outbox_status_is_stuck(ep))
		until = Min(until, ep->status.stuck_until);
	until = Min(until, outbox_step_next_try(OUTBOX_STEP_READ, ep->id));
	until = Min(until, outbox_step_next_try(OUTBOX_STEP_SETTLE, ep->id));
	until = Min(until, outbox_step_next_try(OUTBOX_STEP_FOLLOWERS, ep->id));
	until = Min(until, outbox_status_failing_at(ep));
	until = Min(until, ep->link->look_at);
	until = Min(until, outbox_challenges_next_time(ep));
	return until <= now ? 0 : until;
}

static void
publish_now(OutboxEndpoint *ep, TimestampTz now)
{
	outbox_publish_one(ep, now);

	/* While the head is being read, nothing counts as exact. */
	ep->lists->unpublished = outbox_loop.head.reading != NULL;
}

/* True if there is nothing to settle or to publish of the endpoint. */
static bool
may_close(OutboxEndpoint *ep)
{
	return !outbox_is_listed(&ep->lists->busy_node) && !ep->lists->unpublished &&
		!outbox_settle_wants(ep) && !ep->place.moved && !outbox_settle_lags(ep) &&
		!outbox_tally_waits(ep) && dlist_is_empty(&ep->queue->parking);
}

/* True if it has a link, or has one as soon as outbox.enabled is on again. */
static bool
keeps_link(const OutboxEndpoint *ep)
{
	return ep->link != &outbox_no_link ||
		(!outbox_enabled && outbox_target_has_link(&ep->config.target));
}

/*
 * Lets the endpoint rest if it may, and its stored position needs no change.  A turn that
 * it still waits for has become needless.
 */
static void
rest_if_idle(OutboxEndpoint *ep, TimestampTz now)
{
	if (!ep->place.shared || ep->status.failing_since != 0 ||
		outbox_settings_has_former(&ep->config) || keeps_link(ep) ||
		!outbox_endpoint_may_rest(ep))
		return;
	for (int turn = 0; turn < OUTBOX_TURNS; turn++)
		outbox_turn_remove(turn, ep);
	outbox_slots_leave(ep);
	outbox_endpoint_rest(ep, now);
}

/* Publishes the endpoints of which something may have changed, in turn. */
static void
publish_open(TimestampTz now, XLogRecPtr flushed)
{
	int n = 0;

	for (; left > 0 && n < PUBLISH_AT_ONCE && outbox_loop.roster.nopen > 0; left--)
	{
		OutboxEndpoint *ep = outbox_busy_next_open();
		bool			counts = outbox_tally_flushed(ep, flushed);

		if (ep->lists->unpublished || outbox_is_listed(&ep->lists->busy_node) || counts)
		{
			publish_now(ep, now);
			n++;
		}
		if (!may_close(ep))
			continue;
		outbox_busy_close(ep);
		rest_if_idle(ep, now);
	}
	if (outbox_loop.roster.nopen == 0)
		left = 0;
}

static void
begin_to_publish(TimestampTz now)
{
	published_at = now;
	left = outbox_loop.roster.nopen;
	quiet_ones = 0;

	/* For autovacuum and pg_stat_all_tables.  This function limits its own rate. */
	(void) pgstat_report_stat(false);
}

/*
 * An endpoint that has become quiet is published at once, unless many do.  An endpoint
 * for which the rounds have nothing to do leaves the list of endpoints that they examine.
 */
void
outbox_publish(TimestampTz now)
{
	XLogRecPtr		   flushed = GetFlushRecPtr(NULL);
	dlist_mutable_iter iter;

	outbox_totals_flushed(flushed);
	dlist_foreach_modify(iter, &outbox_loop.roster.busy)
	{
		OutboxEndpoint *ep = outbox_listed(busy_node, iter.cur);
		bool			quiet = outbox_is_quiet(ep);
		TimestampTz		until;

		outbox_status_check_failing(ep, now);
		if (outbox_settle_wants(ep))
		{
			outbox_settle_add(&outbox_loop.to_settle, ep);
			outbox_loop_want_settle(now, ep->queue->nsettling > 0);
		}
		if (ep->tally->latency && now - ep->tally->last_active_at > FORGET_LATENCY_AFTER)
		{
			pfree(ep->tally->latency);
			ep->tally->latency = NULL;
		}
		if (quiet && !ep->member.published_quiet && quiet_ones < PUBLISH_QUIET)
		{
			publish_now(ep, now);
			quiet_ones++;
		}
		ep->member.published_quiet = quiet;
		outbox_settings_free_former(&ep->config);
		take_turns(ep, now, quiet);
		until = waits_until(ep, now, quiet);
		if (until == 0)
			continue;
		if (quiet)
			outbox_window_free(ep);
		outbox_busy_wait(ep, until);
	}
	if (left == 0 && now - published_at >= PUBLISH_EVERY)
		begin_to_publish(now);
	publish_open(now, flushed);
	outbox_loop.due.publish_at = left > 0 ? now :
		outbox_loop.roster.nopen > 0	  ? published_at + PUBLISH_EVERY :
		outbox_totals_wait()			  ? now + PUBLISH_EVERY :
											DT_NOEND;
}
