/*
 * asked.c
 *	  Owns outbox.is_asked(): whether a command waits already.
 *
 * A query of a SERIALIZABLE transaction would lock a page of the index for reading, or a
 * small table as a whole.  Each command that another transaction adds there would then be
 * one that it should have seen, whatever endpoint it is for.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/namespace.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/version.h"

/* The columns that are read here. */
#define Anum_commands_command_id 1
#define Anum_commands_action 3

/* is_asked(endpoint_id int4, action text, seq int8): sees what is committed now. */
OUTBOX_FUNCTION(outbox_is_asked_1_0, 3)
{
	Oid				schema = get_namespace_oid(OUTBOX_SCHEMA, false);
	char		   *action = text_to_cstring(PG_GETARG_TEXT_PP(1));
	int64			newest = 0;
	bool			same = false;
	Relation		rel;
	Relation		index;
	IndexScanDesc	scan;
	TupleTableSlot *slot;
	ScanKeyData		keys[2];

	rel = table_open(get_relname_relid("commands", schema), AccessShareLock);
	index = index_open(get_relname_relid("commands_delivery_idx", schema),
					   AccessShareLock);
	slot = table_slot_create(rel, NULL);
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, PG_GETARG_DATUM(2));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT4EQ, PG_GETARG_DATUM(0));
	scan = outbox_index_beginscan(rel, index, SnapshotSelf, lengthof(keys));
	index_rescan(scan, keys, lengthof(keys), NULL, 0);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		bool  isnull;
		int64 id = DatumGetInt64(slot_getattr(slot, Anum_commands_command_id, &isnull));

		CHECK_FOR_INTERRUPTS();
		if (id < newest)
			continue;
		newest = id;
		same = strcmp(action,
					  TextDatumGetCString(
						  slot_getattr(slot, Anum_commands_action, &isnull))) == 0;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	PG_RETURN_BOOL(same);
}
