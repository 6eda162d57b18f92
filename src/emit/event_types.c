/*
 * event_types.c
 *	  Owns whether the catalogue lists a topic.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/table.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "emit/event_types.h"
#include "log/event_stamp.h"

#define Anum_event_types_topic 1

/*
 * With the latest snapshot, not the transaction's: a REPEATABLE READ transaction that is
 * older than a change must not emit what is not listed any more.
 */
bool
outbox_event_type_listed(const char *topic, size_t len)
{
	Relation	rel = outbox_table_open("event_types", AccessShareLock);
	Oid			index = get_relname_relid("event_types_pkey", RelationGetNamespace(rel));
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	bool		found;

	ScanKeyInit(&key, Anum_event_types_topic, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(topic, len)));
	scan = systable_beginscan(rel, index, OidIsValid(index), snapshot, 1, &key);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}
