/*
 * changes.c
 *	  Owns the list of endpoints whose settings are to be read, because they have changed.
 *
 * Deliveries wait while settings are read.  So some endpoints are read at a time.  An
 * endpoint that the worker knows comes before new ones, and reads no events until its
 * settings are read (reload.c).  An event of a new one stays in the log.
 *
 * Where settings change with the time, as at the end of a rotation of secrets, the endpoints
 * are on a list of their own.
 */
#include "base/outbox.h"

#include "utils/hsearch.h"

#include "base/query.h"
#include "log/transaction.h"
#include "worker/changes.h"
#include "worker/loop.h"
#include "worker/roster.h"

/* Endpoints that are read at a time. */
#define AT_ONCE 500

/* The ids of those that are left: outbox_loop.roster.to_come of them. */
static List *to_come;

/* An endpoint whose settings are to be read at a time, although nothing has changed them. */
typedef struct Timed
{
	int32		id;
	TimestampTz at;
} Timed;

static HTAB		  *timed;				/* NULL: there was none yet */
static TimestampTz timed_at = DT_NOEND; /* the first one is due then, or later */

typedef struct Found
{
	int32 id;
	bool  first; /* it comes before the others */
} Found;

static int
compare_found(const void *a, const void *b)
{
	const Found *x = a;
	const Found *y = b;

	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return y->first - x->first;
}

/* Divides the endpoints that were found: some are read now, and the rest later. */
static void
divide(Found *found, int n, List **ids, List **left)
{
	int m = 0;

	qsort(found, n, sizeof(Found), compare_found);
	for (int i = 0; i < n; i++)
		if (m == 0 || found[m - 1].id != found[i].id)
			found[m++] = found[i];
	*ids = *left = NIL;
	for (int first = 1; first >= 0; first--)
		for (int i = 0; i < m; i++)
			if (found[i].first == (first == 1))
			{
				List **to = list_length(*ids) < AT_ONCE ? ids : left;

				*to = lappend_int(*to, found[i].id);
			}
}

bool
outbox_changes_find(const char *seen, bool (*known)(int32 id), List **ids, List **left)
{
	const List	   *loads = outbox_roster_to_load();
	const ListCell *cell;
	Found		   *found;
	uint64			changed;
	int				n = 0;

	if (seen == NULL)
		return false;
	outbox_lock_indexes(OUTBOX_TABLE_ENDPOINT_CHANGES, OUTBOX_TABLE_ENDPOINT_CHANGES);

	/* Below 0 it is about the endpoints of each tenant with this hash. */
	changed = outbox_query(
		"WITH c AS MATERIALIZED (SELECT c.endpoint_id AS id FROM outbox.endpoint_changes c"
		" WHERE c.xid >= pg_catalog.pg_snapshot_xmax($1::pg_catalog.pg_snapshot)"
		" UNION SELECT c.endpoint_id FROM outbox.endpoint_changes c"
		" WHERE c.xid = ANY (ARRAY("
		"SELECT pg_catalog.pg_snapshot_xip($1::pg_catalog.pg_snapshot))))"
		" SELECT c.id FROM c WHERE c.id >= 0"
		" UNION ALL SELECT s.endpoint_id FROM outbox.endpoint_settings s"
		" WHERE (SELECT pg_catalog.min(c.id) FROM c) < 0"
		" AND -1 - (pg_catalog.hashtext(s.tenant) & 1023) IN (SELECT c.id FROM c)",
		arg_text(seen));
	found = palloc_extended(sizeof(Found) *
								(changed + list_length(loads) + list_length(to_come) + 1),
							MCXT_ALLOC_HUGE);
	for (uint64 i = 0; i < changed; i++)
	{
		int32 id;

		outbox_read_row(i, into_int4(&id));
		if (id == 0)
			return false;
		found[n++] = (Found){id, known(id)};
	}
	foreach (cell, loads)
		found[n++] = (Found){lfirst_int(cell), true};
	foreach (cell, to_come)
		found[n++] = (Found){lfirst_int(cell), false};
	divide(found, n, ids, left);
	return true;
}

void
outbox_changes_leave(const List *left)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	list_free(to_come);
	to_come = list_copy(left);
	outbox_loop.roster.to_come = list_length(to_come);
	MemoryContextSwitchTo(old);
}

TimestampTz
outbox_changes_timed_at(void)
{
	return timed_at;
}

void
outbox_changes_read_at(int32 id, TimestampTz at)
{
	HASHCTL how = {.keysize = sizeof(int32), .entrysize = sizeof(Timed)};

	if (at == DT_NOEND)
	{
		if (timed)
			(void) hash_search(timed, &id, HASH_REMOVE, NULL);
		return;
	}
	if (timed == NULL)
		timed = hash_create("outbox endpoints read at a time", 64, &how,
							HASH_ELEM | HASH_BLOBS);
	((Timed *) hash_search(timed, &id, HASH_ENTER, NULL))->at = at;
	timed_at = Min(timed_at, at);
}

void
outbox_changes_hurry(TimestampTz now)
{
	HASH_SEQ_STATUS scan;
	Timed		   *t;

	if (timed == NULL)
		return;
	hash_seq_init(&scan, timed);
	while ((t = hash_seq_search(&scan)) != NULL)
		t->at = Min(t->at, now);
	timed_at = Min(timed_at, now);
}

void
outbox_changes_take_due(bool all, List **ids)
{
	TimestampTz		now = GetCurrentTimestamp();
	HASH_SEQ_STATUS scan;
	Timed		   *t;

	if (timed == NULL || (!all && now < timed_at))
		return;
	timed_at = DT_NOEND;
	hash_seq_init(&scan, timed);
	while ((t = hash_seq_search(&scan)) != NULL)
	{
		if (!all && (t->at > now || list_length(*ids) >= AT_ONCE))
		{
			timed_at = Min(timed_at, t->at);
			continue;
		}
		if (!all)
			*ids = list_append_unique_int(*ids, t->id);
		(void) hash_search(timed, &t->id, HASH_REMOVE, NULL);
	}
}
