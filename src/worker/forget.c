/*
 * forget.c
 *	  Owns when a request of outbox.forget() is carried out, and the copies in memory of
 *	  the events that it concerns.
 *
 * A pass (forget_pass.c) is for requests of which no worker has such a copy left: each reads
 * the list of outbox.forgotten, loads endpoints again that have such deliveries, and settles
 * (forgotten.c, reload.c).  So nothing of them is written behind a pass, except by an
 * endpoint's worker that it asks for: only that one changes rows of outbox.parked.  It is
 * asked by commands.
 */
#include "base/outbox.h"

#include "endpoint/operator.h"
#include "endpoint/window.h"
#include "log/forgotten.h"
#include "log/step.h"
#include "log/transaction.h"
#include "store/attempts.h"
#include "worker/busy.h"
#include "worker/forget.h"
#include "worker/forget_pass.h"
#include "worker/loop.h"
#include "worker/roster.h"

/* Between two slices the worker does other work for REST times as long. */
#define REST 2

/* µs: the wait for other workers, for locks and for commands. */
#define AGAIN_AFTER (100 * 1000)

static TimestampTz next_at;
static TimestampTz report_at;

/*
 * outbox.forget() was called: no event that it concerns may stay in memory.  Events that
 * were read are read again, and so are events that are counted.  An endpoint that has
 * deliveries of the tenant is loaded again.
 */
static void
forget_copies(OutboxEndpoint *ep, const OutboxForget *list, int n)
{
	bool reads = false; /* events of one of them */

	for (int i = 0; i < n; i++)
	{
		if (ep->tenant && strcmp(ep->tenant->name, list[i].tenant) != 0)
			continue;
		reads = true;
		if (outbox_operator_has_tenant(ep, list[i].tenant, list[i].key))
		{
			outbox_roster_load_again(ep);
			return;
		}
	}
	if (reads && (!outbox_is_attached(ep) || ep->feed->window_count > 0))
	{
		outbox_window_drop(ep, &outbox_loop.head);
		outbox_window_count_again(ep, &outbox_loop.head);
		ep->place.dirty = true;
		outbox_busy_add(ep);
	}
}

void
outbox_forget_copies(void)
{
	int					n;
	const OutboxForget *list = outbox_forgotten_list(&n);

	for (; n > 0 && list->id <= outbox_loop.forgotten; n--)
		list++;
	if (n == 0)
		return;
	for (int i = 0; i < outbox_loop.roster.n; i++)
		forget_copies(outbox_loop.roster.endpoints[i], list, n);
	outbox_loop.forgotten = list[n - 1].id;
}

TimestampTz
outbox_forget_report_time(void)
{
	return pg_atomic_read_u64(&outbox_self->forgot) >= (uint64) outbox_loop.forgotten ||
			outbox_loop.roster.recreating ?
		DT_NOEND :
		report_at;
}

void
outbox_forget_report(void *now)
{
	report_at = *(TimestampTz *) now + AGAIN_AFTER;
	if (outbox_attempts_wait())
		return;
	pg_atomic_write_u64(&outbox_self->forgot, (uint64) outbox_loop.forgotten);
	outbox_workers_wake(outbox_db, true);
}

/* Returns a number.  Of requests up to this one no worker has a copy left. */
static int64
copies_are_gone_upto(void)
{
	uint64 upto = PG_INT64_MAX;

	for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
		if (pg_atomic_read_u64(&outbox_db->workers[w].seen_changes) != 0)
			upto = Min(upto, pg_atomic_read_u64(&outbox_db->workers[w].forgot));
	return (int64) upto;
}

void
outbox_forget_run(void *arg)
{
	TimestampTz			now = *(TimestampTz *) arg;
	int					n;
	const OutboxForget *list = outbox_forgotten_list(&n);
	int64				upto = copies_are_gone_upto();
	TimestampTz			again = now + AGAIN_AFTER;

	next_at = again;
	if (n == 0 || list[0].id > upto || !outbox_txn_begin(true))
		return;
	if (!outbox_lock_log() ||
		!outbox_lock_if_free(OUTBOX_TABLE_ATTEMPT_LOG, OUTBOX_TABLE_ATTEMPT_RUNS_2,
							 RowExclusiveLock) ||
		!outbox_lock_if_free(OUTBOX_TABLE_SCHEDULED, OUTBOX_TABLE_FORGOTTEN,
							 RowExclusiveLock))
	{
		outbox_txn_abort();
		return;
	}
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_KEPT_EVENTS);
	if (outbox_forget_pass_slice(upto))
		again = outbox_step_rest(now, REST);
	outbox_txn_commit();
	next_at = again;
}

TimestampTz
outbox_forget_next_time(void)
{
	int n;

	(void) outbox_forgotten_list(&n);
	return n == 0 ? DT_NOEND : next_at;
}
