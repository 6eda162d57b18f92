/*
 * event_types.c
 *	  Owns whether the catalogue lists a topic.
 *
 * A session remembers the topics that it has found there, until outbox.event_types
 * changes.  A trigger of the table makes the relation cache tell all sessions.  Only
 * listed topics are remembered: any other topic is an error, and rare.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation_d.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/version.h"
#include "emit/event_types.h"
#include "log/event_stamp.h"

#define Anum_event_types_topic 1

/* Topics that are remembered at most.  Beyond that all are forgotten. */
#define MAX_REMEMBERED 4096

typedef struct Listed
{
	char topic[OUTBOX_MAX_TOPIC + 1];
} Listed;

static HTAB *listed;		 /* NULL: none is remembered */
static Oid	 catalogue;		 /* outbox.event_types, as it was found last */
static bool	 changed = true; /* true if 'listed' may be out of date */

static void
relation_changed(Datum arg, Oid relid)
{
	(void) arg;
	if (!OidIsValid(relid) || relid == catalogue)
		changed = true;
}

static void
forget(void)
{
	HASHCTL info = {.keysize = sizeof(Listed), .entrysize = sizeof(Listed)};

	if (listed)
		hash_destroy(listed);
	listed = NULL;
	listed = hash_create("outbox event types", 64, &info, HASH_ELEM | HASH_STRINGS);
	changed = false;
}

/*
 * With the latest snapshot, not the transaction's.  A REPEATABLE READ transaction that
 * is older than a change would otherwise remember an answer that is wrong for its
 * successors.
 */
static bool
find(const char *topic)
{
	Relation	rel = outbox_table_open("event_types", AccessShareLock);
	Oid			index = get_relname_relid("event_types_pkey", RelationGetNamespace(rel));
	Snapshot	snapshot;
	ScanKeyData key;
	SysScanDesc scan;
	bool		found;

	if (catalogue != RelationGetRelid(rel))
		changed = true;
	catalogue = RelationGetRelid(rel);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&key, Anum_event_types_topic, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(topic));
	scan = systable_beginscan(rel, index, OidIsValid(index), snapshot, 1, &key);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}

bool
outbox_event_type_listed(const char *topic, size_t len)
{
	static bool registered = false;
	Listed		key;

	memset(&key, 0, sizeof(key));
	memcpy(key.topic, topic, Min(len, OUTBOX_MAX_TOPIC));
	if (!registered)
	{
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		registered = true;
	}

	/* A transaction that has all its locks may not have heard of a change yet. */
	AcceptInvalidationMessages();
	if (changed || hash_get_num_entries(listed) >= MAX_REMEMBERED)
		forget();
	if (hash_search(listed, key.topic, HASH_FIND, NULL))
		return true;
	if (!find(key.topic))
		return false;

	/* While the table was opened, a change may have been heard of. */
	if (!changed)
		(void) hash_search(listed, key.topic, HASH_ENTER, NULL);
	return true;
}
