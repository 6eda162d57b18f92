/*
 * changes.c
 *	  Owns the list of endpoints whose settings are to be read, because they have changed.
 *
 * Deliveries wait while settings are read.  Endpoints that the worker knows are read at
 * once, because the old settings do not hold any more.  New ones can wait: an event of
 * theirs stays in the log.  So only some of them are read at a time.
 */
#include "base/outbox.h"

#include "base/query.h"
#include "worker/changes.h"
#include "worker/loop.h"
#include "worker/roster.h"

/* If more known endpoints have changed, the settings of all are read. */
#define CHANGES_MAX 1000

/* New endpoints that are read at a time. */
#define NEW_AT_ONCE 500

/* New endpoints that are left: outbox_loop.roster.to_come of them. */
static int32 *to_come;

/* The same after this call; in the memory of its transaction. */
static int32 *later;
static int	  nlater;

static int
compare_ids(const void *a, const void *b)
{
	int32 x = *(const int32 *) a;
	int32 y = *(const int32 *) b;

	return x < y ? -1 : x > y;
}

static void
take_new(int32 *new, int n, List **ids)
{
	int taken = 0;

	qsort(new, n, sizeof(int32), compare_ids);
	later = new;
	nlater = 0;
	for (int i = 0; i < n; i++)
	{
		if (i > 0 && new[i] == new[i - 1])
			continue;
		if (taken < NEW_AT_ONCE)
		{
			*ids = lappend_int(*ids, new[i]);
			taken++;
		}
		else
			later[nlater++] = new[i];
	}
}

bool
outbox_changes_find(const char *seen, bool (*known)(int32 id), List **ids)
{
	int32 *new;
	int	   nnew = 0;
	uint64 n;

	if (seen == NULL)
		return false;
	*ids = list_copy(outbox_roster_to_load());
	n = outbox_query(
		"SELECT DISTINCT c.endpoint_id FROM outbox.endpoint_changes c"
		" WHERE c.xid >= pg_catalog.pg_snapshot_xmin($1::pg_catalog.pg_snapshot)"
		" AND NOT pg_catalog.pg_visible_in_snapshot(c.xid, $1::pg_catalog.pg_snapshot)",
		arg_text(seen));
	new = palloc(sizeof(int32) * (n + outbox_loop.roster.to_come + 1));
	for (uint64 i = 0; i < n; i++)
	{
		int32 id = row_int4(fetch_row(i), 0);

		if (id == 0)
			return false;
		if (!known(id))
			new[nnew++] = id;
		else if (list_length(*ids) < CHANGES_MAX)
			*ids = list_append_unique_int(*ids, id);
	}
	if (list_length(*ids) >= CHANGES_MAX)
		return false;
	if (outbox_loop.roster.to_come > 0)
		memcpy(new + nnew, to_come, sizeof(int32) * outbox_loop.roster.to_come);
	take_new(new, nnew + outbox_loop.roster.to_come, ids);
	return true;
}

void
outbox_changes_found(bool all)
{
	if (to_come)
		pfree(to_come);
	to_come = NULL;
	outbox_loop.roster.to_come = all ? 0 : nlater;
	if (outbox_loop.roster.to_come == 0)
		return;
	to_come = MemoryContextAlloc(TopMemoryContext, sizeof(int32) * nlater);
	memcpy(to_come, later, sizeof(int32) * nlater);
}
