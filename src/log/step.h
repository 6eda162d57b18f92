/*
 * step.h
 *	  The steps of a worker's work, each in a transaction of its own.  A step that
 *	  fails is put on hold, and all others continue.
 */
#ifndef OUTBOX_STEP_H
#define OUTBOX_STEP_H

#include "base/outbox.h"

#include "log/transaction.h"
#include "server/shmem.h"

/* Why a step failed. */
typedef struct OutboxStepError
{
	int	 sqlerrcode;
	char message[OUTBOX_HOLD_MESSAGE];
} OutboxStepError;

/* As outbox.held_steps shows them. */
extern const char *const outbox_step_names[OUTBOX_STEPS];

typedef void (*OutboxStepBody)(void *arg);

/*
 * Called when a worker starts.  Steps that its former process had on hold are still on
 * hold.
 */
extern void outbox_step_init(void);

/*
 * Runs the body unless the step is on hold.  Puts the step on hold if the body fails.
 * The body may blame one endpoint: then only that endpoint's part of the step is held.
 * Returns true if the body was run and did not fail.
 */
extern bool	 outbox_step_run(OutboxStep step, OutboxStepBody body, void *arg);
extern void	 outbox_step_blame(int32 endpoint_id); /* 0: no endpoint */
extern int32 outbox_step_blamed(void);

/*
 * Runs the body, which begins and commits transactions.  Returns false if it failed:
 * the transaction is then aborted.
 *
 * Two errors are thrown on.  One is an error outside of a transaction: a commit may
 * have been made before, of which the memory has no record yet.  The other is lack of
 * memory of this process: a change in memory may be half done.  The process then ends, and
 * the next one reads everything from the tables.
 */
extern bool outbox_step_try(OutboxStepBody body, void *arg, OutboxStepError *failure);

/*
 * The same for a part of an open transaction, in a subtransaction.  A cancel, which is no
 * fault of the part, and lack of memory are thrown on.
 */
extern bool outbox_step_try_part(OutboxStepBody body, void *arg,
								 OutboxStepError *failure);

/* True if the failure is a lock that another transaction has. */
extern bool outbox_step_was_locked(const OutboxStepError *failure);

/*
 * The SET clause of an UPDATE of a row that cannot be processed. $2 is the reason, $3
 * the shortest wait in seconds.  The next wait is as long as the row has failed so
 * far, at most a day.
 */
#define OUTBOX_SET_ASIDE \
	" SET error = $2, failed_at = COALESCE(failed_at, pg_catalog.now())," \
	" retry_at = pg_catalog.now() +" \
	" LEAST(GREATEST(pg_catalog.make_interval(secs => $3)," \
	" pg_catalog.now() - failed_at)," \
	" pg_catalog.make_interval(days => 1))"

/* Its $3.  Another transaction's lock ends soon, other failures last longer. */
#define OUTBOX_SET_ASIDE_SECS(locked) ((locked) ? 1 : 60)

/* Puts a step on hold, or its part for one endpoint.  0: the whole step. */
extern void outbox_step_hold(OutboxStep step, int32 endpoint_id,
							 const OutboxStepError *failure);

/* Ends the hold, if there is one.  To be called when the step has worked. */
extern void outbox_step_passed(OutboxStep step, int32 endpoint_id);

/* True if the step, or its part for the endpoint, must not be tried yet, or was not at a time. */
extern bool outbox_step_held(OutboxStep step, int32 endpoint_id);
extern bool outbox_step_held_at(OutboxStep step, int32 endpoint_id, TimestampTz at);

/*
 * This process ends because a call of a library for the endpoint did not return.  The
 * endpoint is held, for longer each time, in whatever process serves it.  If it has a
 * tenant and another endpoint of the tenant was held before, all endpoints of the tenant
 * are.  0: it is not known for which, and none is held.  stuck_until returns until when it
 * is (0: it is not), and since when.  'tenant' is a number for its tenant, 0: it has none.
 * not_stuck removes the hold of an endpoint without a tenant.
 */
extern void		   outbox_step_stuck(int32 endpoint_id, uint64 tenant);
extern TimestampTz outbox_step_stuck_until(int32 endpoint_id, uint64 tenant,
										   TimestampTz *since);
extern void		   outbox_step_not_stuck(int32 endpoint_id);

/*
 * When the endpoint's part of the step, which has failed, may be tried again; it may be past.
 * DT_NOEND: it has not failed, or has succeeded since.
 */
extern TimestampTz outbox_step_next_try(OutboxStep step, int32 endpoint_id);

/*
 * Returns until when the worker does other work than that of a step, which has worked since
 * 'begun': for so many times as long.
 */
extern TimestampTz outbox_step_rest(TimestampTz begun, int times);

/* Puts a step on hold, or its part for one endpoint, because another session has a lock. */
extern void outbox_step_hold_locked(OutboxStep step, int32 endpoint_id,
									const char *table);

/*
 * In a transaction: locks tables that the step needs.  If another session has one, the
 * step is put on hold.  False: the step must do nothing now.
 */
extern bool outbox_step_lock(OutboxStep step, OutboxTable first, OutboxTable last,
							 LOCKMODE mode);

/* True if the step as a whole may be tried. */
static inline bool
outbox_step_may(OutboxStep step)
{
	return !outbox_step_held(step, 0);
}

/*
 * True if a step that reads the log is on hold, and not for a lock.  A damaged row may
 * then be the cause.
 */
extern bool outbox_step_reading_failed(void);

/* The earliest time at which something on hold may be tried again; DT_NOEND: never. */
extern TimestampTz outbox_step_next_time(void);

/* Lets everything on hold be tried again now. */
extern void outbox_step_retry_all(void);

/*
 * Removes the endpoint's holds, when it is not served here any more.  0: removes all,
 * when this worker has ended for good.
 */
extern void outbox_step_forget(int32 endpoint_id);

#endif /* OUTBOX_STEP_H */
