/*
 * backlog_limit.c
 *	  Owns outbox.max_backlog_size: an endpoint that retains more of the log than
 *	  this loses the oldest events of its backlog.
 *
 * These become dead letters, which keep copies of their events like any others, and
 * the endpoint's position moves on.  So the pieces of the log that only this
 * endpoint needed can be emptied.  How much an endpoint retains is estimated from
 * the numbers of events, as in outbox.stats.
 */
#include "base/outbox.h"

#include "utils/timestamp.h"

#include "base/query.h"
#include "base/settings.h"
#include "base/table_rows.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "log/transaction.h"
#include "worker/backlog_limit.h"
#include "worker/dispatch.h"
#include "worker/loop.h"
#include "worker/laggards.h"
#include "worker/roster.h"

#define LOOK_EVERY (1 * USECS_PER_SEC)

/* µs until the next try while outcomes cannot be settled. */
#define SETTLE_WAIT (50 * 1000)

/* Dead letters that one step makes at most, because requests wait meanwhile. */
#define STEP_EVENTS 500

static TimestampTz look_at;
static TimestampTz wait_until; /* no step before: outcomes have to be settled first */
static bool		   more;	   /* true if an endpoint is still before 'cut' */
static int64	   cut;		   /* the log may be retained from this number on */

TimestampTz
outbox_backlog_limit_next_time(void)
{
	if (outbox_max_backlog_size < 0)
		return DT_NOEND;
	return Max(wait_until, more ? 0 : look_at);
}

/*
 * Returns the lowest number from which on the log is no larger than allowed.  0:
 * all of it is allowed.
 */
static int64
find_cut(void)
{
	OutboxColumns row;
	int64		  bytes;
	double		  allowed = (double) outbox_max_backlog_size * 1024 * 1024;

	outbox_query("SELECT bytes, max_seq, min_seq FROM outbox.log_size", 0, NULL, NULL,
				 NULL);
	row = fetch_row(0);
	bytes = row_int8(row, 0);
	if (row.nulls[2] || bytes <= allowed)
		return 0;
	return row_int8(row, 1) -
		(int64) (allowed / bytes * (row_int8(row, 1) - row_int8(row, 2) + 1));
}

/* Returns about where in the log the endpoint is, as an event's number. */
static int64
place_of(OutboxEndpoint *ep)
{
	const OutboxCursor *c = outbox_window_frontier(ep, &outbox_loop.head);

	return Max(c->read->seq_low, c->last_seq);
}

static int64
last_seq_of(OutboxEndpoint *ep)
{
	return outbox_window_frontier(ep, &outbox_loop.head)->last_seq;
}

static int
shorten(OutboxEndpoint *ep)
{
	int n = outbox_endpoint_overflow_ready(ep, cut);

	/* What was read ahead is read again, to become dead letters. */
	if (ep->feed->attached || ep->feed->window_count > 0)
		outbox_window_drop(ep, &outbox_loop.head);
	n += outbox_laggards_overflow(ep);
	ep->place.overflowed += n;
	if (place_of(ep) >= cut && ep->place.overflowed > 0)
	{
		ereport(
			LOG,
			(errmsg(
				 "outbox endpoint \"%s\" retained more than outbox.max_backlog_size: " INT64_FORMAT
				 " deliveries are dead",
				 ep->config.name, ep->place.overflowed),
			 errhint("outbox.retry('%s') sends them, outbox.discard('%s') discards them.",
					 ep->config.name, ep->config.name)));
		ep->place.overflowed = 0;
	}
	return n;
}

bool
outbox_backlog_limit_step(TimestampTz now)
{
	int n = 0;

	/*
	 * Dead deliveries stay in memory until they are settled, so their number is
	 * bounded.
	 */
	if (outbox_loop.traffic.unsettled >= 2 * OUTBOX_SETTLE_AFTER)
	{
		wait_until = now + SETTLE_WAIT;
		return true;
	}
	if (!outbox_txn_begin(false))
		return false;
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_EVENTS_2);
	if (now >= look_at)
	{
		cut = find_cut();
		look_at = now + LOOK_EVERY;
	}
	more = false;
	for (int i = 0; cut > 0 && i < outbox_loop.roster.n; i++)
	{
		OutboxEndpoint *ep = outbox_loop.roster.endpoints[i];
		int64			place;
		int64			last_seq;
		int				dead;

		if (ep->member.dropped || ep->member.recreate || ep->member.put_off ||
			(ep->feed->attached && ep->feed->window_count == 0) ||
			ep->status.unstorable || outbox_step_held(OUTBOX_STEP_BACKLOG, ep->id))
			continue;
		outbox_step_blame(ep->id);
		place = place_of(ep);
		if (place >= cut)
			continue;
		if (n >= STEP_EVENTS)
		{
			more = true; /* its turn comes in a later step */
			continue;
		}
		last_seq = last_seq_of(ep);
		dead = shorten(ep);
		n += dead;
		outbox_loop.traffic.unsettled += dead;
		outbox_step_passed(OUTBOX_STEP_BACKLOG, ep->id);

		/*
		 * The next step is due at once if this one got further.  Events that were
		 * committed late have lower numbers, so last_seq may change while the place
		 * does not.
		 */
		if (place_of(ep) < cut && (place_of(ep) != place || last_seq_of(ep) != last_seq))
			more = true;
	}
	outbox_step_blame(0);
	outbox_txn_commit();
	return true;
}
