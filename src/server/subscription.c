/*
 * subscription.c
 *	  Keeps outbox out of logical replication: what a publisher has in the tables
 *	  of its outbox belongs to its own log, and stays there.
 *
 * A publication FOR ALL TABLES includes these tables.  Endpoints, positions and
 * numbers of events are the same ones in every database, so what another worker
 * wrote must not get among what ours did; and a conflict, or a table that is to be
 * emptied, would stop the subscription, with all other tables in it.
 *
 * - A subscription applies what concerns the tables that pg_subscription_rel
 *	 lists, and passes over all else.  Ours are taken off that list in the same
 *	 transaction that puts them there.
 * - Where that could not be, because the library was not loaded, a trigger passes
 *	 over each row.
 * - When a worker of ours empties a table, no subscription hears of it.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "replication/logicalworker.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/version.h"
#include "server/subscription.h"

/* The subscription that a command has changed; InvalidOid: none. */
static Oid
changed_subscription(Node *parsetree)
{
	const char *name = NULL;

	if (IsA(parsetree, CreateSubscriptionStmt))
		name = castNode(CreateSubscriptionStmt, parsetree)->subname;
	else if (IsA(parsetree, AlterSubscriptionStmt))
		name = castNode(AlterSubscriptionStmt, parsetree)->subname;
	return name ? get_subscription_oid(name, true) : InvalidOid;
}

/*
 * Tables of ours that the subscription lists, and that no process copies at the
 * moment: such a process has a slot at the publisher, which PostgreSQL drops.
 */
static List *
listed_tables(Oid subscription, Oid extension)
{
	Relation	rel = table_open(SubscriptionRelRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *found = NIL;

	ScanKeyInit(&key, Anum_pg_subscription_rel_srsubid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(subscription));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription_rel listed = (Form_pg_subscription_rel) GETSTRUCT(tuple);

		if ((listed->srsubstate == SUBREL_STATE_INIT ||
			 listed->srsubstate == SUBREL_STATE_READY) &&
			getExtensionOfObject(RelationRelationId, listed->srrelid) == extension)
			found = lappend_oid(found, listed->srrelid);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* After a utility command: see above. */
void
outbox_leave_subscription(Node *parsetree)
{
	Oid		  subscription;
	Oid		  extension;
	List	 *tables;
	ListCell *cell;

	if (!IsA(parsetree, CreateSubscriptionStmt) && !IsA(parsetree, AlterSubscriptionStmt))
		return;
	extension = get_extension_oid("outbox", true);
	if (!OidIsValid(extension))
		return;
	CommandCounterIncrement();
	subscription = changed_subscription(parsetree);
	if (!OidIsValid(subscription))
		return;
	tables = listed_tables(subscription, extension);
	foreach (cell, tables)
		RemoveSubscriptionRel(subscription, lfirst_oid(cell));
	if (tables != NIL)
		ereport(
			NOTICE,
			(errmsg("subscription \"%s\" leaves out the tables of outbox",
					get_subscription_name(subscription, false)),
			 errdetail(
				 "Each database has a log of its own. The events of the publisher are sent from there.")));
}

/*
 * keep_out(): a trigger that fires for what a subscription brings.  A row is passed
 * over; that a table is to be emptied can only be refused here.  What a trigger of
 * the user's emits meanwhile is ours.
 */
OUTBOX_FUNCTION(outbox_keep_out_1_0, 0)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						"keep_out")));
	if (IsLogicalWorker() && DatumGetInt32(OidFunctionCall0(F_PG_TRIGGER_DEPTH)) == 1)
	{
		if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
			ereport(
				ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a subscription may not empty outbox.%s",
						RelationGetRelationName(data->tg_relation)),
				 errdetail(
					 "It holds what this database has emitted and delivered itself."),
				 errhint(
					 "Have outbox in shared_preload_libraries, and run ALTER SUBSCRIPTION … REFRESH PUBLICATION: the subscription then leaves out the tables of outbox, and goes on.")));
		return PointerGetDatum(NULL);
	}
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple :
																	 data->tg_trigtuple);
}

/*
 * TRUNCATE of a table that the caller has locked ACCESS EXCLUSIVE.  That of SQL
 * would be sent to subscribers, which would wait for such a lock of their own.
 * There is nothing that a subscriber has to follow: rows were not taken back.
 */
void
outbox_empty_table(Oid relid)
{
	Relation rel = table_open(relid, NoLock);

	CheckTableNotInUse(rel, "TRUNCATE");
	outbox_truncate_unpublished(rel);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}
