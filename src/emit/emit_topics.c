/*
 * emit_topics.c
 *	  Owns outbox.emit_topics: which roles are bound to some topics.
 *
 * The right to emit at all is PostgreSQL's own.  Where no role is bound, an event costs nothing
 * here: a session remembers that the table is empty, until it changes.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/names.h"
#include "emit/emit_topics.h"
#include "log/event_stamp.h"

/* The columns of outbox.emit_topics. */
enum
{
	Anum_emit_topics_role = 1,
	Anum_emit_topics_role_oid,
	Anum_emit_topics_topics,
	Anum_emit_topics_cluster
};

bool outbox_emit_topics_none;

static Oid	  table;
static uint64 invalidations;

static void
relation_changed(Datum arg, Oid relid)
{
	if (OidIsValid(relid) && relid != table)
		return;
	outbox_emit_topics_none = false;
	invalidations++;
}

/*
 * True if the row is about a role that this role has by 'test'.  A role may have been renamed,
 * and another one may have its name now.
 */
static bool
binds(HeapTuple row, TupleDesc desc, Oid role, OutboxRoleTest test)
{
	bool isnull;
	Oid	 named = get_role_oid(TextDatumGetCString(
								  heap_getattr(row, Anum_emit_topics_role, desc, &isnull)),
							  true);
	Oid	 former = DatumGetObjectId(
		 heap_getattr(row, Anum_emit_topics_role_oid, desc, &isnull));
	int64 cluster = DatumGetInt64(
		heap_getattr(row, Anum_emit_topics_cluster, desc, &isnull));

	if (OidIsValid(named) && test(role, named))
		return true;
	return (!OidIsValid(named) || cluster == (int64) GetSystemIdentifier()) &&
		SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(former)) && test(role, former);
}

bool
outbox_topic_in_array(const char *topic, size_t len, ArrayType *array)
{
	Datum *patterns;
	bool  *nulls;
	int	   n;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &patterns, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		text *pattern = nulls[i] ? NULL : DatumGetTextPP(patterns[i]);

		CHECK_FOR_INTERRUPTS();
		if (pattern &&
			outbox_topic_matches(topic, len, VARDATA_ANY(pattern),
								 VARSIZE_ANY_EXHDR(pattern)))
			return true;
	}
	return false;
}

/* With the latest snapshot: a transaction that is older than a change obeys it. */
bool
outbox_emit_topics_allow(Oid role, OutboxRoleTest test, const char *topic, size_t len)
{
	static bool registered = false;
	uint64		before;
	Relation	rel;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	row;
	bool		empty = true;
	bool		bound = false;
	bool		allowed = false;
	bool		isnull;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		registered = true;
	}
	before = invalidations;
	rel = outbox_table_open("emit_topics", AccessShareLock);
	table = RelationGetRelid(rel);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	while (!allowed && HeapTupleIsValid(row = systable_getnext(scan)))
	{
		empty = false;
		if (!binds(row, RelationGetDescr(rel), role, test))
			continue;
		bound = true;
		if (topic == NULL)
			continue;
		allowed = outbox_topic_in_array(topic, len,
										DatumGetArrayTypeP(
											heap_getattr(row, Anum_emit_topics_topics,
														 RelationGetDescr(rel),
														 &isnull)));
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	outbox_emit_topics_none = empty && before == invalidations;
	return allowed || !bound;
}
