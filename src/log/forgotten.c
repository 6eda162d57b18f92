/*
 * forgotten.c
 *	  Owns which events outbox.forget() concerns.
 *
 * A worker empties the rows of these events, in slices.  From the call's commit on they
 * count as forgotten, whether their row is empty yet or not: a worker reads the list
 * when it reloads settings, and before it reads any event.
 */
#include "base/outbox.h"

#include "common/hashfn.h"
#include "storage/lmgr.h"

#include "base/query.h"
#include "log/forgotten.h"
#include "log/tables.h"
#include "log/tick.h"

/*
 * The calls that name one tenant and key.  The name is that of the tenant, and with a key
 * both, with a control character between them, which no tenant has.
 */
typedef struct Subject
{
	const char	 *name;
	uint32		  hash;
	char		  status;
	OutboxForget *first;
	OutboxForget *last;
	int			  nkeys; /* calls that name a key of this tenant */
} Subject;

#define SH_PREFIX subjects
#define SH_ELEMENT_TYPE Subject
#define SH_KEY name
#include "base/string_hash.h"

#define SUBJECT_SIZE (OUTBOX_MAX_TENANT + 1 + OUTBOX_MAX_KEY + 1)

static MemoryContext  list_cxt;
static OutboxForget	 *list;
static int			  nlist;
static subjects_hash *subjects; /* of the list; undefined while it is empty */

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

static Subject *
subject(const char *name)
{
	bool	 found;
	Subject *s = subjects_insert(subjects, name, &found);

	if (!found)
	{
		s->first = s->last = NULL;
		s->nkeys = 0;
	}
	return s;
}

/* Makes the call findable by its tenant and key. */
static void
add(OutboxForget *f)
{
	Subject *s;

	if (f->key)
	{
		subject(f->tenant)->nkeys++;
		s = subject(psprintf("%s\001%s", f->tenant, f->key));
	}
	else
		s = subject(f->tenant);
	f->next = NULL;
	if (s->last)
		s->last->next = f;
	else
		s->first = f;
	s->last = f;
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
	subjects = subjects_create(list_cxt, (uint32) Max(n, 1), NULL);
	for (uint64 i = 0; i < n; i++)
	{
		OutboxForget *f = &list[nlist];

		outbox_read_row(i, into_int8(&f->id), into_text(&f->tenant),
						into_text(&f->snapshot), into_int8(&f->upto), into_text(&f->key));
		f->requested_at = outbox_tick_make(0, 0, 0, 0, f->snapshot);
		nlist++;
		add(f);
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

static const Subject *
find(const char *tenant, size_t tenant_len, const char *key, size_t key_len)
{
	char name[SUBJECT_SIZE];

	if (nlist == 0 || tenant_len > OUTBOX_MAX_TENANT || key_len > OUTBOX_MAX_KEY)
		return NULL;
	memcpy(name, tenant, tenant_len);
	name[tenant_len] = '\0';
	if (key)
	{
		name[tenant_len] = '\001';
		memcpy(name + tenant_len + 1, key, key_len);
		name[tenant_len + 1 + key_len] = '\0';
	}
	return subjects_lookup(subjects, name);
}

const OutboxForget *
outbox_forgotten_of(const char *tenant, const char *key)
{
	const Subject *s = find(tenant, strlen(tenant), key, key ? strlen(key) : 0);

	return s ? s->first : NULL;
}

static bool
one_sees(const Subject *s, uint64 xid)
{
	for (const OutboxForget *f = s ? s->first : NULL; f; f = f->next)
		if (outbox_tick_sees(f->requested_at, xid))
			return true;
	return false;
}

bool
outbox_forgotten_covers(const text *tenant, Datum key, bool no_key, uint64 xid)
{
	const char	  *name = VARDATA_ANY(tenant);
	size_t		   len = VARSIZE_ANY_EXHDR(tenant);
	const Subject *s = find(name, len, NULL, 0);
	const text	  *of;

	if (one_sees(s, xid))
		return true;
	if (s == NULL || s->nkeys == 0 || no_key)
		return false;
	of = DatumGetTextPP(key);
	return one_sees(find(name, len, VARDATA_ANY(of), VARSIZE_ANY_EXHDR(of)), xid);
}
