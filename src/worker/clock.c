/*
 * clock.c
 *	  Owns what happens when the wall clock is set back: nothing may wait for a
 *	  time that has been already.
 *
 * Every file of the worker keeps times of its own: when to settle, when to look
 * again, when an endpoint may be tried.  Instead of correcting each, the worker
 * starts over; only what the tables hold has to be brought to the new clock.  A
 * clock that is set forward needs nothing: what waits is due sooner.
 */
#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "base/query.h"
#include "log/transaction.h"
#include "store/parked.h"
#include "worker/clock.h"

#define TOLERANCE (1 * USECS_PER_SEC)

static TimestampTz last = DT_NOBEGIN;

bool
outbox_clock_went_back(TimestampTz now)
{
	if (last != DT_NOBEGIN && now < last - TOLERANCE)
		return true;
	last = now;
	return false;
}

/*
 * Retries keep the rest of their wait.  Where the table is not to be had they
 * wait for backoff_max at the most, see outbox_parked_load().
 */
void
outbox_clock_follow(TimestampTz now)
{
	Interval back = {.time = last - now};
	Datum	 args[2] = {TimestampTzGetDatum(last), IntervalPGetDatum(&back)};

	ereport(LOG,
			(errmsg("outbox worker starts over: the clock was set back by %d s",
					(int) ((last - now) / USECS_PER_SEC))));
	if (!outbox_txn_begin(true))
		return;
	outbox_query("UPDATE outbox.parked"
				 " SET next_attempt_at = next_attempt_at OPERATOR(pg_catalog.-) $2"
				 " WHERE status OPERATOR(pg_catalog.=) 'retrying'"
				 " AND next_attempt_at OPERATOR(pg_catalog.>) $1",
				 2, (Oid[]){TIMESTAMPTZOID, INTERVALOID}, args, NULL);
	outbox_txn_commit();
}
