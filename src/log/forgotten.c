/*
 * forgotten.c
 *	  Owns which events outbox.forget() concerns.
 *
 * A worker empties the rows of these events, in slices.  From the call's commit on they
 * count as forgotten, whether their row is empty yet or not: a worker reads the list
 * when it reloads settings, and before it reads any event.
 */
#include "base/outbox.h"

#include "storage/lmgr.h"

#include "base/query.h"
#include "log/forgotten.h"
#include "log/tables.h"
#include "log/tick.h"

static MemoryContext list_cxt;
static OutboxForget *list;
static int			 nlist;

static void
clear(void)
{
	for (int i = 0; i < nlist; i++)
		outbox_tick_unref(list[i].requested_at);
	nlist = 0;
	if (list_cxt == NULL)
		list_cxt = AllocSetContextCreate(TopMemoryContext, "outbox forgotten",
										 ALLOCSET_SMALL_SIZES);
	MemoryContextReset(list_cxt);
}

bool
outbox_forgotten_read(void)
{
	MemoryContext old;
	uint64		  n;

	if (!ConditionalLockRelationOid(outbox_table_oid(OUTBOX_TABLE_FORGOTTEN),
									AccessShareLock))
		return false;
	n = outbox_query(
		"SELECT forget_id, tenant, snapshot::pg_catalog.text, upto, key"
		" FROM outbox.forgotten WHERE complete_at IS NULL ORDER BY forget_id");
	clear();
	old = MemoryContextSwitchTo(list_cxt);
	list = palloc(sizeof(OutboxForget) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		OutboxForget *f = &list[nlist];

		outbox_read_row(i, into_int8(&f->id), into_text(&f->tenant),
						into_text(&f->snapshot), into_int8(&f->upto), into_text(&f->key));
		f->requested_at = outbox_tick_make(0, 0, 0, 0, f->snapshot);
		nlist++;
	}
	MemoryContextSwitchTo(old);
	return true;
}

const OutboxForget *
outbox_forgotten_list(int *n)
{
	*n = nlist;
	return list;
}

static bool
is_text(const text *t, const char *s)
{
	size_t len = strlen(s);

	return VARSIZE_ANY_EXHDR(t) == len && memcmp(VARDATA_ANY(t), s, len) == 0;
}

bool
outbox_forgotten_covers(const text *tenant, Datum key, bool no_key, uint64 xid)
{
	for (int i = 0; i < nlist; i++)
		if (is_text(tenant, list[i].tenant) &&
			(list[i].key == NULL ||
			 (!no_key && is_text(DatumGetTextPP(key), list[i].key))) &&
			outbox_tick_sees(list[i].requested_at, xid))
			return true;
	return false;
}
