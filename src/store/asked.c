/*
 * asked.c
 *	  Owns how the commands that wait for a delivery are found, and outbox.is_asked():
 *	  whether one waits already.
 *
 * The index by delivery leads to them.  A statement would have to be planned so, whatever
 * the statistics are.  A query of a SERIALIZABLE transaction would also lock a page of the
 * index for reading, or a small table as a whole.  Each command that another transaction
 * adds there would then be one that it should have seen, whatever endpoint it is for.
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
#include "store/asked.h"

/* The columns that are read here. */
#define Anum_commands_command_id 1
#define Anum_commands_action 3
#define Anum_commands_retry_at 6

static OutboxAsked
read_command(TupleTableSlot *slot)
{
	OutboxAsked command;
	bool		null;
	Datum		retry_at = slot_getattr(slot, Anum_commands_retry_at, &null);

	command.retry_at = null ? 0 : DatumGetTimestampTz(retry_at);
	command.id = DatumGetInt64(slot_getattr(slot, Anum_commands_command_id, &null));
	command.action = TextDatumGetCString(slot_getattr(slot, Anum_commands_action, &null));
	return command;
}

void
outbox_asked_each(int32 endpoint_id, int64 seq, OutboxAskedVisit visit, void *arg)
{
	Oid		 schema = get_namespace_oid(OUTBOX_SCHEMA, false);
	Relation rel = table_open(get_relname_relid("commands", schema), AccessShareLock);
	Relation index = index_open(get_relname_relid("commands_delivery_idx", schema),
								AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	IndexScanDesc	scan;
	ScanKeyData		keys[2];

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(seq));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(endpoint_id));
	scan = outbox_index_beginscan(rel, index, SnapshotSelf, lengthof(keys));
	index_rescan(scan, keys, lengthof(keys), NULL, 0);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		OutboxAsked command = read_command(slot);

		CHECK_FOR_INTERRUPTS();
		visit(arg, &command);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
}

static void
keep_newest(void *arg, const OutboxAsked *command)
{
	OutboxAsked *newest = arg;

	if (command->id >= newest->id)
		*newest = *command;
}

/* is_asked(endpoint_id int4, action text, seq int8): sees what is committed now. */
OUTBOX_FUNCTION(outbox_is_asked_1_0, 3)
{
	char	   *action = text_to_cstring(PG_GETARG_TEXT_PP(1));
	OutboxAsked newest = {0};

	outbox_asked_each(PG_GETARG_INT32(0), PG_GETARG_INT64(2), keep_newest, &newest);
	PG_RETURN_BOOL(newest.action != NULL && strcmp(action, newest.action) == 0);
}
