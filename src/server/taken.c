/*
 * taken.c
 *	  Counts the events that were taken from each source, since the server started.
 *
 * A transaction, or a subtransaction, that is rolled back has taken none.  So each counts
 * for itself, and the transaction adds up at its commit.
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/version.h"
#include "server/shmem.h"
#include "server/taken.h"

/* What a subtransaction has taken of one source. */
typedef struct Count
{
	struct Count	*before;
	SubTransactionId subid;
	Oid				 subscription;
	uint64			 events;
} Count;

static Count *newest; /* of this transaction, in its memory */

/* Returns NULL if there is none.  outbox_shared->lock must be held. */
static OutboxTaken *
find(Oid subscription)
{
	for (int i = 0; i < OUTBOX_MAX_SOURCES; i++)
		if (outbox_shared->taken[i].subscription == subscription)
			return &outbox_shared->taken[i];
	return NULL;
}

/* Nothing here may fail, as in wakeup.c. */
static void
add_up(void)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (Count *count = newest; count != NULL; count = count->before)
	{
		OutboxTaken *taken = find(count->subscription);

		if (taken == NULL && (taken = find(InvalidOid)) != NULL)
			*taken = (OutboxTaken){.subscription = count->subscription};
		if (taken != NULL)
			taken->events += count->events;
	}
	LWLockRelease(outbox_shared->lock);
}

/* A prepared transaction is counted before it is known whether it commits. */
static void
at_transaction_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			if (newest != NULL)
				add_up();
			newest = NULL;
			break;
		case XACT_EVENT_ABORT:
			newest = NULL;
			break;
		default:
			break;
	}
}

/* Subtransactions that began in this one have higher numbers. */
static void
at_subtransaction_end(SubXactEvent event, SubTransactionId subid, SubTransactionId parent,
					  void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		while (newest != NULL && newest->subid >= subid)
			newest = newest->before;
}

void
outbox_taken_add(Oid subscription)
{
	static bool		 registered = false;
	SubTransactionId subid = GetCurrentSubTransactionId();

	if (outbox_shared == NULL || !OidIsValid(subscription))
		return;
	if (!registered)
	{
		RegisterXactCallback(at_transaction_end, NULL);
		RegisterSubXactCallback(at_subtransaction_end, NULL);
		registered = true;
	}
	if (newest == NULL || newest->subid != subid || newest->subscription != subscription)
	{
		Count *count = MemoryContextAllocZero(TopTransactionContext, sizeof(Count));

		count->before = newest;
		count->subid = subid;
		count->subscription = subscription;
		newest = count;
	}
	newest->events++;
}

void
outbox_taken_forget(void)
{
	for (int i = 0; outbox_shared != NULL && i < OUTBOX_MAX_SOURCES; i++)
	{
		OutboxTaken *taken = &outbox_shared->taken[i];
		Oid			 subscription = taken->subscription;

		if (!OidIsValid(subscription))
			continue;

		/* A subscription is committed before it is here, so a new snapshot sees it. */
		InvalidateCatalogSnapshot();
		if (SearchSysCacheExists1(SUBSCRIPTIONOID, ObjectIdGetDatum(subscription)))
			continue;
		LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
		if (taken->subscription == subscription)
			taken->subscription = InvalidOid;
		LWLockRelease(outbox_shared->lock);
	}
}

/* events_taken(subscription oid): NULL if they are not counted. */
OUTBOX_FUNCTION(outbox_events_taken_1_0, 1)
{
	OutboxTaken *taken;
	uint64		 events = 0;
	bool		 counted;

	if (outbox_shared == NULL)
		PG_RETURN_NULL();
	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	taken = find(PG_GETARG_OID(0));
	counted = taken != NULL || find(InvalidOid) != NULL;
	if (taken != NULL)
		events = taken->events;
	LWLockRelease(outbox_shared->lock);
	if (!counted)
		PG_RETURN_NULL();
	PG_RETURN_INT64(events);
}
