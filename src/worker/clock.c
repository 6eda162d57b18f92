/*
 * clock.c
 *	  Owns the corrections when the wall clock is set.  Nothing may wait for a
 *	  time that has passed once already.
 *
 * Every file of the worker has times of its own: when to settle, when to read again, when
 * an endpoint may be tried.  These are not corrected one by one.  The worker starts over,
 * and only the times in the tables are changed to the new clock.  When the clock is set
 * forward, everything that waits is due sooner, and only the time for which an endpoint
 * has failed is corrected.
 */
#include "base/outbox.h"

#include "portability/instr_time.h"

#include "base/query.h"
#include "endpoint/status.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "worker/clock.h"

#define TOLERANCE (1 * USECS_PER_SEC)

static TimestampTz last = DT_NOBEGIN;
static int64	   last_steady; /* µs of the clock that cannot be set, at 'last' */

bool
outbox_clock_went_back(TimestampTz now)
{
	instr_time t;
	int64	   steady;
	int64	   ahead;

	if (last != DT_NOBEGIN && now < last - TOLERANCE)
		return true;
	INSTR_TIME_SET_CURRENT(t);
	steady = (int64) INSTR_TIME_GET_MICROSEC(t);
	ahead = (now - last) - (steady - last_steady);
	if (last != DT_NOBEGIN && ahead > TOLERANCE)
		outbox_status_clock_ahead(ahead);
	last = now;
	last_steady = steady;
	return false;
}

/*
 * Retries keep the rest of their wait.  If the table is locked, they wait at most
 * backoff_max, see read_retries().
 */
void
outbox_clock_follow(TimestampTz now)
{
	Interval back = {.time = last - now};

	ereport(LOG,
			(errmsg("outbox worker starts over: the clock was set back by %d s",
					(int) ((last - now) / USECS_PER_SEC))));
	if (!outbox_txn_begin(true))
		return;
	outbox_query("UPDATE outbox.parked"
				 " SET next_attempt_at = next_attempt_at - $2"
				 " WHERE status = 'retrying' AND next_attempt_at > $1"
				 " AND " OUTBOX_SHARE_OF_ENDPOINT " = ANY ($3)",
				 arg_time(last), arg_datum(INTERVALOID, IntervalPGetDatum(&back)),
				 arg_datum(INT4ARRAYOID, outbox_shares_array(true)));
	outbox_txn_commit();
}
