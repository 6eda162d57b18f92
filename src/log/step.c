/*
 * step.c
 *	  Owns the steps of a worker that failed: until when each is on hold, and why.
 *
 * An SQL error in one step must not stop the others.  So each step's transaction is run
 * here.  Its error is caught, the transaction is aborted, and the step is tried again after
 * a time that doubles with each failure.  The list is kept in this process.  A copy is in
 * shared memory, for outbox.held_steps and for the worker's next process.  So a step that
 * made the process end stays on hold.
 *
 * A step changes the worker's memory only after its commit, or so that it can be repeated.
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "postmaster/interrupt.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/log_lines.h"
#include "base/memory.h"
#include "log/reserve.h"
#include "log/step.h"
#include "log/transaction.h"

/* µs: the first hold, and the longest. */
#define FIRST_HOLD (1 * USECS_PER_SEC)
#define LONGEST_HOLD (60 * USECS_PER_SEC)

/* µs: the same while another transaction has a lock, which is not a fault. */
#define FIRST_WAIT (50 * 1000)
#define LONGEST_WAIT (500 * 1000)

/* µs: the same for an endpoint for which a call of a library did not return. */
#define FIRST_STUCK (60 * USECS_PER_SEC)
#define LONGEST_STUCK USECS_PER_HOUR

/* µs: work of a step in one go.  A longer time is that of the disk or the machine. */
#define LONGEST_WORK USECS_PER_SEC

const char *const outbox_step_names[OUTBOX_STEPS] = {
	[OUTBOX_STEP_SCHEDULE] = "schedule",
	[OUTBOX_STEP_READ] = "read",
	[OUTBOX_STEP_SETTLE] = "settle",
	[OUTBOX_STEP_PARKED] = "parked",
	[OUTBOX_STEP_FOLLOWERS] = "followers",
	[OUTBOX_STEP_RETENTION] = "retention",
	[OUTBOX_STEP_FORGET_ATTEMPTS] = "forget_attempts",
	[OUTBOX_STEP_TIDY] = "tidy",
	[OUTBOX_STEP_DEDUP] = "dedup",
	[OUTBOX_STEP_REPLAY] = "replay",
	[OUTBOX_STEP_COMMAND] = "command",
	[OUTBOX_STEP_BACKLOG] = "backlog",
	[OUTBOX_STEP_NOTICE] = "notice",
	[OUTBOX_STEP_ATTEMPTS] = "attempts",
	[OUTBOX_STEP_POSITIONS] = "positions",
	[OUTBOX_STEP_RELOAD] = "reload",
	[OUTBOX_STEP_DATABASE] = "database",
	[OUTBOX_STEP_FORGET] = "forget",
	[OUTBOX_STEP_SEEK] = "seek",
	[OUTBOX_STEP_LEFTOVERS] = "leftovers",
	[OUTBOX_STEP_FIGURES] = "figures",
	[OUTBOX_STEP_SEND] = "send",
};

/* The first members of an OutboxHold */
typedef struct HoldKey
{
	Oid		   dboid;
	int32	   worker;
	OutboxStep step;
	int32	   endpoint_id;
} HoldKey;

static HTAB *holds; /* OutboxHold by HoldKey */
static int32 blamed;

/* The present hold may be removed meanwhile. */
#define FOREACH_HOLD(scan, hold) \
	hash_seq_init(&(scan), holds); \
	while (((hold) = hash_seq_search(&(scan))) != NULL)

/* In a session there are none. */
static inline bool
some_held(void)
{
	return holds && hash_get_num_entries(holds) > 0;
}

static OutboxHold *
search(OutboxStep step, int32 endpoint_id, HASHACTION action)
{
	HoldKey key = {outbox_db->dboid, outbox_worker_number, step, endpoint_id};

	return hash_search(holds, &key, action, NULL);
}

/* NULL: there is none. */
static OutboxHold *
find(OutboxStep step, int32 endpoint_id)
{
	return some_held() ? search(step, endpoint_id, HASH_FIND) : NULL;
}

static bool
is_same(const OutboxHold *a, const OutboxHold *b)
{
	return a->dboid == b->dboid && a->worker == b->worker && a->step == b->step &&
		a->endpoint_id == b->endpoint_id;
}

/* Copies a hold to shared memory, or removes it.  Without space there, it holds as well. */
static void
publish(const OutboxHold *hold, bool over)
{
	OutboxHold *place = NULL;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_HOLDS; i++)
	{
		OutboxHold *h = &outbox_shared->holds[i];

		if (OidIsValid(h->dboid) && is_same(h, hold))
		{
			place = h;
			break;
		}
		if (!OidIsValid(h->dboid) && place == NULL)
			place = h;
	}
	if (over && place && is_same(place, hold))
		memset(place, 0, sizeof(OutboxHold));
	else if (!over && place)
		*place = *hold;
	LWLockRelease(outbox_shared->lock);
}

static OutboxHold *
add(OutboxStep step, int32 endpoint_id)
{
	OutboxHold *hold = search(step, endpoint_id, HASH_ENTER);

	memset((char *) hold + sizeof(HoldKey), 0, sizeof(OutboxHold) - sizeof(HoldKey));
	hold->since = GetCurrentTimestamp();
	return hold;
}

/* True if the hold is over, and for so long that it says nothing of the next one. */
static bool
is_forgotten(const OutboxHold *h, TimestampTz now)
{
	return h->step == OUTBOX_STEP_SEND && now > h->next_try_at + LONGEST_STUCK;
}

/*
 * In shared memory.  The lock is held.  NULL: there is none.  A tenant has one hold, which
 * stays when the endpoint is dropped, so that a new one is not the first again.
 */
static OutboxHold *
find_stuck(int32 endpoint_id, uint64 tenant)
{
	for (int i = 0; i < OUTBOX_MAX_HOLDS && outbox_shared->any_stuck; i++)
	{
		OutboxHold *h = &outbox_shared->holds[i];

		if (h->dboid == outbox_db->dboid && h->step == OUTBOX_STEP_SEND &&
			h->tenant == tenant && (tenant != 0 || h->endpoint_id == endpoint_id))
			return h;
	}
	return NULL;
}

/* It allocates nothing, because it runs when the process leaves a call. */
void
outbox_step_stuck(int32 endpoint_id, uint64 tenant)
{
	TimestampTz now = GetCurrentTimestamp();
	OutboxHold *h = NULL;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	outbox_self->stuck_for = endpoint_id != 0 ? endpoint_id : -1;
	if (endpoint_id != 0)
		h = find_stuck(endpoint_id, tenant);
	for (int i = 0; i < OUTBOX_MAX_HOLDS && endpoint_id != 0 && h == NULL; i++)
		if (!OidIsValid(outbox_shared->holds[i].dboid) ||
			is_forgotten(&outbox_shared->holds[i], now))
			h = &outbox_shared->holds[i];
	if (h && (!OidIsValid(h->dboid) || is_forgotten(h, now)))
	{
		memset(h, 0, sizeof(OutboxHold));
		h->dboid = outbox_db->dboid;
		h->step = OUTBOX_STEP_SEND;
		h->endpoint_id = endpoint_id;
		h->tenant = tenant;
		h->sqlerrcode = ERRCODE_SYSTEM_ERROR;
		h->since = now;
		strlcpy(h->error, OUTBOX_STUCK, sizeof(h->error));
		outbox_shared->any_stuck = true;
	}
	if (h)
	{
		h->all = h->all || h->endpoint_id != endpoint_id;
		h->endpoint_id = endpoint_id;
		h->worker = outbox_worker_number;
		h->next_try_at = now + Min(FIRST_STUCK << Min(h->failures, 16), LONGEST_STUCK);
		h->failures++;
		outbox_self->exited_cleanly = true; /* the next process does not meet it */
	}
	LWLockRelease(outbox_shared->lock);
}

TimestampTz
outbox_step_stuck_until(int32 endpoint_id, uint64 tenant, TimestampTz *since)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = 0;
	OutboxHold *h;

	if (!outbox_shared->any_stuck)
		return 0;
	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	h = find_stuck(endpoint_id, tenant);
	if (h && h->next_try_at > now && (h->all || h->endpoint_id == endpoint_id))
	{
		until = Min(h->next_try_at, now + LONGEST_STUCK);
		*since = h->since;
	}
	LWLockRelease(outbox_shared->lock);
	return until;
}

void
outbox_step_not_stuck(int32 endpoint_id)
{
	OutboxHold *h;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	h = find_stuck(endpoint_id, 0);
	if (h)
		memset(h, 0, sizeof(OutboxHold));
	LWLockRelease(outbox_shared->lock);
}

/* Ends the holds of such endpoints.  The next one is longer all the same. */
static void
retry_stuck(TimestampTz now)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_HOLDS && outbox_shared->any_stuck; i++)
	{
		OutboxHold *h = &outbox_shared->holds[i];

		if (h->dboid == outbox_db->dboid && h->step == OUTBOX_STEP_SEND)
			h->next_try_at = Min(h->next_try_at, now);
	}
	LWLockRelease(outbox_shared->lock);
}

/*
 * Holds of single endpoints are removed, because another worker may now have the
 * endpoint.  Holds for a call that did not return stay, for the worker that has the
 * endpoint.  No hold lasts longer than LONGEST_HOLD, even if the clock was changed.
 */
void
outbox_step_init(void)
{
	TimestampTz latest = GetCurrentTimestamp() + LONGEST_HOLD;
	HASHCTL		how = {.keysize = sizeof(HoldKey), .entrysize = sizeof(OutboxHold)};

	StaticAssertStmt(offsetof(OutboxHold, endpoint_id) == offsetof(HoldKey, endpoint_id),
					 "a hold begins with its key");
	holds = hash_create("outbox holds", OUTBOX_STEPS, &how, HASH_ELEM | HASH_BLOBS);
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_HOLDS; i++)
	{
		OutboxHold *h = &outbox_shared->holds[i];

		if (h->dboid != outbox_db->dboid || h->worker != outbox_worker_number ||
			h->step == OUTBOX_STEP_SEND)
			continue;
		if (h->endpoint_id == 0)
		{
			h->next_try_at = Min(h->next_try_at, latest);
			*add(h->step, 0) = *h;
		}
		else
			memset(h, 0, sizeof(OutboxHold));
	}
	LWLockRelease(outbox_shared->lock);
}

bool
outbox_step_was_locked(const OutboxStepError *failure)
{
	return failure->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		failure->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
}

/* Returns true if there is more space than there was, so that a step may succeed now. */
static bool
make_room(void)
{
	bool			given = false;
	OutboxStepError failure;

	return !outbox_txn_is_open() &&
		outbox_step_try(outbox_reserve_give_up_alone, &given, &failure) && given;
}

static int64
pause_after(const OutboxHold *hold, bool locked)
{
	int64 first = locked ? FIRST_WAIT : FIRST_HOLD;
	int64 longest = locked ? LONGEST_WAIT : LONGEST_HOLD;

	return Min(first << Min(hold->failures - 1, 16), longest);
}

void
outbox_step_hold(OutboxStep step, int32 endpoint_id, const OutboxStepError *failure)
{
	bool		locked = outbox_step_was_locked(failure);
	bool		again = failure->sqlerrcode == ERRCODE_DISK_FULL && make_room();
	OutboxHold *hold = find(step, endpoint_id);
	TimestampTz now = GetCurrentTimestamp();
	const char *whose = endpoint_id ? psprintf(" for endpoint %d", endpoint_id) : "";

	/* The worker ends, and its next process need not wait. */
	if (ShutdownRequestPending && failure->sqlerrcode == ERRCODE_QUERY_CANCELED)
		return;
	if (hold == NULL)
		hold = add(step, endpoint_id);

	/* Waits for a lock are not counted as failures, nor failures as waits. */
	if (hold->failures > 0 && hold->locked != locked)
		hold->failures = 0;
	hold->failures++;
	hold->locked = locked;
	hold->sqlerrcode = failure->sqlerrcode;
	strlcpy(hold->error, failure->message, sizeof(hold->error));
	hold->next_try_at = now + (again ? 0 : pause_after(hold, locked));
	publish(hold, false);
	if (locked)
		return;
	ereport(
		outbox_log_line_of(OUTBOX_LINE_HOLD, endpoint_id, outbox_step_names[step]) ?
			WARNING :
			DEBUG1,
		(errcode(failure->sqlerrcode),
		 errmsg("outbox step \"%s\"%s failed and is on hold for %d s: %s",
				outbox_step_names[step], whose,
				(int) ((hold->next_try_at - now) / USECS_PER_SEC), failure->message),
		 errhint(
			 "All other steps continue. The view outbox.held_steps shows what is on hold. SELECT pg_reload_conf() makes the worker try it again at once.")));
}

void
outbox_step_passed(OutboxStep step, int32 endpoint_id)
{
	OutboxHold *hold = find(step, endpoint_id);

	if (hold == NULL)
		return;
	publish(hold, true);
	if (!hold->locked)
		ereport(outbox_log_line_of(OUTBOX_LINE_PASSED, endpoint_id, "") ? LOG : DEBUG1,
				(errmsg("outbox step \"%s\" works again", outbox_step_names[step])));
	(void) search(step, endpoint_id, HASH_REMOVE);
}

bool
outbox_step_held_at(OutboxStep step, int32 endpoint_id, TimestampTz at)
{
	const OutboxHold *hold = find(step, endpoint_id);

	return hold != NULL && at < hold->next_try_at;
}

bool
outbox_step_held(OutboxStep step, int32 endpoint_id)
{
	return some_held() && outbox_step_held_at(step, endpoint_id, GetCurrentTimestamp());
}

TimestampTz
outbox_step_next_try(OutboxStep step, int32 endpoint_id)
{
	const OutboxHold *hold = find(step, endpoint_id);

	return hold ? hold->next_try_at : DT_NOEND;
}

bool
outbox_step_reading_failed(void)
{
	HASH_SEQ_STATUS scan;
	OutboxHold	   *hold;
	bool			failed = false;

	if (!some_held())
		return false;
	FOREACH_HOLD(scan, hold)
	switch (hold->step)
	{
		case OUTBOX_STEP_READ:
		case OUTBOX_STEP_FOLLOWERS:
		case OUTBOX_STEP_REPLAY:
		case OUTBOX_STEP_BACKLOG:
		case OUTBOX_STEP_RELOAD:
			failed = failed || !hold->locked;
			break;
		default:
			break;
	}
	return failed;
}

TimestampTz
outbox_step_rest(TimestampTz begun, int times)
{
	TimestampTz now = GetCurrentTimestamp();

	return now + Min(Max(now - begun, 0), LONGEST_WORK) * times;
}

void
outbox_step_hold_locked(OutboxStep step, int32 endpoint_id, const char *table)
{
	OutboxStepError failure = {.sqlerrcode = ERRCODE_LOCK_NOT_AVAILABLE};

	snprintf(failure.message, sizeof(failure.message), "%s is locked by another session",
			 table);
	outbox_step_hold(step, endpoint_id, &failure);
}

bool
outbox_step_lock(OutboxStep step, OutboxTable first, OutboxTable last, LOCKMODE mode)
{
	if (outbox_step_held(step, 0))
		return false;
	if (outbox_lock_if_free(first, last, mode))
		return true;
	outbox_step_hold_locked(step, 0,
							psprintf("\"" OUTBOX_SCHEMA ".%s\"",
									 outbox_table_name(first)));
	return false;
}

TimestampTz
outbox_step_next_time(void)
{
	TimestampTz		now = some_held() ? GetCurrentTimestamp() : 0;
	TimestampTz		next = DT_NOEND;
	HASH_SEQ_STATUS scan;
	OutboxHold	   *hold;

	/* A step that was not tried for LONGEST_HOLD after that has no more work. */
	FOREACH_HOLD(scan, hold)
	{
		TimestampTz at = hold->next_try_at;

		if (now > at + LONGEST_HOLD)
			outbox_step_passed(hold->step, hold->endpoint_id);
		else
			next = Min(next, at > now ? at : at + LONGEST_HOLD + 1);
	}
	return next;
}

void
outbox_step_retry_all(void)
{
	HASH_SEQ_STATUS scan;
	OutboxHold	   *hold;

	FOREACH_HOLD(scan, hold)
	{
		hold->next_try_at = GetCurrentTimestamp();
		hold->failures = 1;
		publish(hold, false);
	}
	retry_stuck(GetCurrentTimestamp());
}

void
outbox_step_forget(int32 endpoint_id)
{
	HASH_SEQ_STATUS scan;
	OutboxHold	   *hold;

	FOREACH_HOLD(scan, hold)
	if (endpoint_id == 0 || hold->endpoint_id == endpoint_id)
	{
		publish(hold, true);
		(void) search(hold->step, hold->endpoint_id, HASH_REMOVE);
	}
}

void
outbox_step_blame(int32 endpoint_id)
{
	blamed = endpoint_id;
}

int32
outbox_step_blamed(void)
{
	return blamed;
}

/* Copies the error, and clears it. */
static void
catch_failure(OutboxStepError *failure, MemoryContext caller)
{
	ErrorData *error;
	int		   len;

	MemoryContextSwitchTo(caller);
	error = CopyErrorData();
	FlushErrorState();
	failure->sqlerrcode = error->sqlerrcode;
	len = pg_mbcliplen(error->message, strlen(error->message), OUTBOX_HOLD_MESSAGE - 1);
	memcpy(failure->message, error->message, len);
	failure->message[len] = '\0';
	FreeErrorData(error);
}

bool
outbox_step_try(OutboxStepBody body, void *arg, OutboxStepError *failure)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool passed = true;

	blamed = 0;
	PG_TRY();
	{
		body(arg);
	}
	PG_CATCH();
	{
		if (!outbox_txn_is_open() || outbox_memory_was_lacking(caller))
			PG_RE_THROW();
		passed = false;
		HOLD_INTERRUPTS();
		catch_failure(failure, caller);
		outbox_txn_abort_failed();
		MemoryContextSwitchTo(caller);
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	return passed;
}

bool
outbox_step_try_part(OutboxStepBody body, void *arg, OutboxStepError *failure)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool passed = true;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		body(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_OUT_OF_MEMORY ||
			ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_OPERATOR_INTERVENTION)
			PG_RE_THROW();
		passed = false;
		catch_failure(failure, caller);
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	return passed;
}

bool
outbox_step_run(OutboxStep step, OutboxStepBody body, void *arg)
{
	OutboxStepError failure;

	if (outbox_step_held(step, 0))
		return false;
	if (outbox_step_try(body, arg, &failure))
	{
		outbox_step_passed(step, 0);
		return true;
	}
	if (blamed != 0)
		outbox_step_passed(step, 0);
	outbox_step_hold(step, blamed, &failure);
	return false;
}
