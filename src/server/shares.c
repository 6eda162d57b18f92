/*
 * shares.c
 *	  Owns which worker serves which share: the division of a database among its
 *	  workers, and the hand-over from one worker to another.
 */
#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "storage/lwlock.h"
#include "utils/array.h"

#include "server/shares.h"

static int	  me;	/* this worker's index + 1 */
static uint64 seen; /* shares_changed when this worker last read the shares */
static bool	  served[OUTBOX_SHARES];
static bool	  leaving[OUTBOX_SHARES];
static int	  nserved;
static int	  nleaving;

int
outbox_share_of(int32 endpoint_id)
{
	return 1 + (int) ((uint32) endpoint_id % (OUTBOX_SHARES - 1));
}

/* ------------------------------------------------------------- division */

static bool
takes_part(const OutboxDatabase *d, int w)
{
	return d->workers[w].serves && !d->workers[w].retiring;
}

/* Makes every worker read the shares again. */
static void
wake_to_read_shares(OutboxDatabase *d)
{
	pg_atomic_fetch_add_u64(&d->shares_changed, 1);
	outbox_workers_wake(d, true);
}

/*
 * The worker with the fewest endpoints, or the most, among the workers that take part.
 * Among equals, the worker with the lowest index.  -1: none takes part.
 */
static int
least_or_most_loaded(const OutboxDatabase *d, const int *load, bool most)
{
	int found = -1;

	for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
		if (takes_part(d, w) &&
			(found < 0 || (most ? load[w] > load[found] : load[w] < load[found])))
			found = w;
	return found;
}

/*
 * The heaviest share of 'from' that weighs at most half of the difference between the two
 * workers.  So it makes them more even, and the other one does not get more than 'from'
 * keeps, which it would have to pass on.  -1: there is none.
 */
static int
worth_moving(const OutboxDatabase *d, int from, int difference)
{
	int found = -1;

	for (int s = 1; s < OUTBOX_SHARES; s++)
		if (d->wanted[s] == from + 1 && d->weight[s] > 0 &&
			2 * d->weight[s] <= difference &&
			(found < 0 || d->weight[s] > d->weight[found]))
			found = s;
	return found;
}

/*
 * Assigns the shares to the workers, when one joins, is to retire, or has ended: as evenly
 * as the numbers of endpoints allow, with as few moves as possible.  Shares without
 * endpoints stay while their worker takes part, and move when they get the first one.
 */
static void
distribute(OutboxDatabase *d)
{
	int	 load[OUTBOX_MAX_WORKERS] = {0};
	bool changed = false;

	if (least_or_most_loaded(d, load, false) < 0)
		return; /* the first worker that joins gets all shares */
	for (int s = 1; s < OUTBOX_SHARES; s++)
		if (d->wanted[s] != 0)
			load[d->wanted[s] - 1] += d->weight[s];
	for (int s = 0; s < OUTBOX_SHARES; s++)
	{
		int to;

		if (d->wanted[s] != 0 && takes_part(d, d->wanted[s] - 1))
			continue;
		to = least_or_most_loaded(d, load, false);
		d->wanted[s] = to + 1;
		load[to] += d->weight[s];
		changed = true;
	}
	for (;;)
	{
		int from = least_or_most_loaded(d, load, true);
		int to = least_or_most_loaded(d, load, false);
		int s = worth_moving(d, from, load[from] - load[to]);

		if (s < 0)
			break;
		d->wanted[s] = to + 1;
		load[from] -= d->weight[s];
		load[to] += d->weight[s];
		changed = true;
	}
	if (changed)
		wake_to_read_shares(d);
}

/* Announced even if no share moves: a worker without shares must see that it retires. */
void
outbox_shares_retire(OutboxDatabase *d, int worker)
{
	d->workers[worker].retiring = true;
	distribute(d);
	wake_to_read_shares(d);
}

void
outbox_shares_exit(OutboxDatabase *d, int worker)
{
	d->workers[worker].serves = false;
	d->workers[worker].retiring = false;
	for (int s = 0; s < OUTBOX_SHARES; s++)
		if (d->owner[s] == worker + 1)
			d->owner[s] = 0;
	distribute(d);

	/* Shares that are already assigned to other workers are free from now on. */
	wake_to_read_shares(d);
}

/* --------------------------------------------------------- in the worker */

void
outbox_shares_join(void)
{
	me = outbox_worker_number + 1;
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	outbox_self->serves = true;
	distribute(outbox_db);
	LWLockRelease(outbox_shared->lock);

	/* Now that one worker serves, the launcher may start more. */
	outbox_launcher_wake();
}

bool
outbox_shares_changed(void)
{
	return pg_atomic_read_u64(&outbox_db->shares_changed) != seen;
}

OutboxSharesChange
outbox_shares_update(void)
{
	OutboxSharesChange news = {0};

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	seen = pg_atomic_read_u64(&outbox_db->shares_changed);
	for (int s = 0; s < OUTBOX_SHARES; s++)
	{
		if (outbox_db->owner[s] == 0 && outbox_db->wanted[s] == me)
		{
			outbox_db->owner[s] = me;
			served[s] = true;
			nserved++;
			news.taken = true;
		}
		else if (served[s] && outbox_db->wanted[s] != me)
		{
			served[s] = false;
			nserved--;
			leaving[s] = true;
			nleaving++;
			news.leaving = true;
		}
	}
	news.retired = outbox_self->retiring && nserved + nleaving == 0;
	LWLockRelease(outbox_shared->lock);
	return news;
}

bool
outbox_share_served(int share)
{
	return served[share];
}

bool
outbox_serves_database(void)
{
	return served[OUTBOX_SHARE_DATABASE];
}

bool
outbox_serves_endpoint(int32 endpoint_id)
{
	return served[outbox_share_of(endpoint_id)];
}

Datum
outbox_shares_array(bool with_leaving)
{
	Datum shares[OUTBOX_SHARES];
	int	  n = 0;

	StaticAssertStmt(OUTBOX_SHARES == 256, "OUTBOX_SHARE_OF_ENDPOINT says so, too");
	for (int s = 0; s < OUTBOX_SHARES; s++)
		if (served[s] || (with_leaving && leaving[s]))
			shares[n++] = Int32GetDatum(s);
	return PointerGetDatum(
		construct_array(shares, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

bool
outbox_shares_leaving(void)
{
	return nleaving > 0;
}

/* A share that this worker is to have again meanwhile is taken like any other. */
void
outbox_shares_give_back(const bool *in_use)
{
	bool given = false;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int s = 0; s < OUTBOX_SHARES; s++)
	{
		if (!leaving[s] || in_use[s])
			continue;
		Assert(outbox_db->owner[s] == me);
		outbox_db->owner[s] = 0;
		leaving[s] = false;
		nleaving--;
		given = true;
	}
	if (given)
		wake_to_read_shares(outbox_db);
	LWLockRelease(outbox_shared->lock);
}

void
outbox_shares_weigh(const uint16 *weight)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int s = 1; s < OUTBOX_SHARES; s++)
	{
		/* A share that gets its first endpoint may go to any worker. */
		if (outbox_db->weight[s] == 0 && weight[s] > 0)
			outbox_db->wanted[s] = 0;
		outbox_db->weight[s] = weight[s];
	}
	distribute(outbox_db);
	LWLockRelease(outbox_shared->lock);
}
