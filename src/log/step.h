/*
 * step.h
 *	  What a worker does is done in steps, each in a transaction of its own.  One
 *	  that fails is put on hold, and everything else goes on.
 */
#ifndef OUTBOX_STEP_H
#define OUTBOX_STEP_H

#include "base/outbox.h"

#include "server/shmem.h"

/* Why a step failed, as it was caught. */
typedef struct OutboxStepError
{
	int	 sqlerrcode;
	char message[OUTBOX_HOLD_MESSAGE];
} OutboxStepError;

typedef void (*OutboxStepBody)(void *arg);

/* A worker starts: what its former process had on hold is still on hold. */
extern void outbox_step_init(OutboxDatabase *db, int worker);

/*
 * Runs the body unless the step is on hold, and holds the step when it fails.
 * The body may blame one endpoint: then only that endpoint's part of the step is
 * held.  True if it did not fail.
 */
extern bool	 outbox_step_run(OutboxStep step, OutboxStepBody body, void *arg);
extern void	 outbox_step_blame(int32 endpoint_id); /* 0: no endpoint */
extern int32 outbox_step_blamed(void);

/*
 * Runs the body, which begins and commits transactions.  False if it failed: the
 * transaction is aborted.  An error outside of a transaction is thrown on, for
 * then a commit may have been made that memory does not know of; and so is one of
 * memory that was not to be had, for a change of what is in memory may be half
 * done.  The process ends, and the next one reads everything from the tables.
 */
extern bool outbox_step_try(OutboxStepBody body, void *arg, OutboxStepError *failure);

/*
 * The same for a part of a transaction that is open: in a subtransaction.
 */
extern bool outbox_step_try_part(OutboxStepBody body, void *arg,
								 OutboxStepError *failure);

/* True if the failure is a lock that another transaction has. */
extern bool outbox_step_was_locked(const OutboxStepError *failure);

/*
 * What an UPDATE sets of a row that cannot be worked off: $2 is the reason, $3 the
 * shortest wait in seconds.  The row is tried again after as long as this has gone
 * on, at most a day.
 */
#define OUTBOX_SET_ASIDE \
	" SET error = $2, failed_at = COALESCE(failed_at, pg_catalog.now())," \
	" retry_at = pg_catalog.now() OPERATOR(pg_catalog.+)" \
	" LEAST(GREATEST(pg_catalog.make_interval(secs => $3)," \
	" pg_catalog.now() OPERATOR(pg_catalog.-) failed_at)," \
	" pg_catalog.make_interval(days => 1))"

/* Its $3: another transaction's lock ends soon, anything else takes longer. */
#define OUTBOX_SET_ASIDE_SECS(locked) ((locked) ? 1 : 60)

/* Puts a step on hold, or what it does for one endpoint; 0: all of it. */
extern void outbox_step_hold(OutboxStep step, int32 endpoint_id,
							 const OutboxStepError *failure);

/* It has worked: the hold is over, if there was one. */
extern void outbox_step_passed(OutboxStep step, int32 endpoint_id);

/* True if it must not be tried yet. */
extern bool outbox_step_held(OutboxStep step, int32 endpoint_id);

/* True if the step as a whole may be tried. */
static inline bool
outbox_step_may(OutboxStep step)
{
	return !outbox_step_held(step, 0);
}

/*
 * True if a step that reads the log is on hold, and not for a lock: then a row may
 * be at fault.
 */
extern bool outbox_step_reading_failed(void);

/* The first time that something on hold may be tried again; DT_NOEND: never. */
extern TimestampTz outbox_step_next_time(void);

/* All that is on hold may be tried again now. */
extern void outbox_step_retry_all(void);

/* The endpoint is not served here any more; 0: this worker has ended for good. */
extern void outbox_step_forget(int32 endpoint_id);

#endif /* OUTBOX_STEP_H */
