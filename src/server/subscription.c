/*
 * subscription.c
 *	  Keeps the tables of outbox out of logical replication.  The tables of a
 *	  publisher's outbox belong to its own log, and are not replicated.
 *
 * A publication FOR ALL TABLES includes these tables.  Endpoints, positions and numbers
 * of events are the same in every database.  Rows of another database's worker must not
 * mix with the rows of this database's worker.  A conflict, or a TRUNCATE, would also
 * stop the subscription with all its other tables.
 *
 * - A subscription applies changes of the tables that pg_subscription_rel lists, and
 *   skips all others.  The tables of outbox are removed from that list in the
 *   transaction that adds them.
 * - If the library was not loaded at that moment, a trigger skips each row.
 * - outbox.emitted and outbox.deferred are there for the subscriptions of outbox.follow(),
 *	 whose names begin with "outbox_" (emit/take.c).
 * - When a worker empties a table, no WAL record for subscriptions is written.
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
#include "replication/logicalworker.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/version.h"
#include "server/subscription.h"

/* True if outbox.follow() has made the subscription to bring rows into this table. */
static bool
brings_events(const char *subscription, Oid table)
{
	const char *name = get_rel_name(table);

	return strncmp(subscription, "outbox_", 7) == 0 && name != NULL &&
		(strcmp(name, "emitted") == 0 || strcmp(name, "deferred") == 0);
}

/*
 * Tables of outbox that the subscription lists, without tables that are being copied at
 * the moment.  The process that copies has a slot at the publisher, which PostgreSQL must
 * drop.
 */
static List *
listed_tables(Oid subscription, const char *name, Oid extension)
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
			getExtensionOfObject(RelationRelationId, listed->srrelid) == extension &&
			!brings_events(name, listed->srrelid))
			found = lappend_oid(found, listed->srrelid);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Called after a utility command that made or changed a subscription. */
void
outbox_leave_subscription(const char *name)
{
	Oid		  subscription;
	Oid		  extension;
	List	 *tables;
	ListCell *cell;

	extension = get_extension_oid("outbox", true);
	if (!OidIsValid(extension))
		return;
	CommandCounterIncrement();
	subscription = get_subscription_oid(name, true);
	if (!OidIsValid(subscription))
		return;
	tables = listed_tables(subscription, name, extension);
	foreach (cell, tables)
		RemoveSubscriptionRel(subscription, lfirst_oid(cell));
	if (tables != NIL)
		ereport(
			NOTICE,
			(errmsg("subscription \"%s\" leaves out the tables of outbox",
					get_subscription_name(subscription, false)),
			 errdetail(
				 "Each database has its own log. The publisher sends its own events.")));
}

/*
 * skip_replicated(): the trigger of all tables.  It skips a row that a subscription
 * applies, and refuses a TRUNCATE, which a trigger cannot skip.  Rows that another trigger
 * emits meanwhile (trigger depth above 1) belong to this database.
 */
OUTBOX_FUNCTION(outbox_skip_replicated_1_0, 0)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.skip_replicated() is a trigger function"),
				 errhint("It belongs to the tables of outbox.")));
	if (!IsLogicalWorker() || DatumGetInt32(OidFunctionCall0(F_PG_TRIGGER_DEPTH)) != 1)
		return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ?
								   data->tg_newtuple :
								   data->tg_trigtuple);
	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("a subscription may not empty outbox.%s",
					RelationGetRelationName(data->tg_relation)),
			 errdetail("It holds what this database has emitted and delivered itself."),
			 errhint(
				 "Add outbox to shared_preload_libraries, and run ALTER SUBSCRIPTION ... REFRESH PUBLICATION. The subscription then leaves out the tables of outbox, and continues.")));
	return PointerGetDatum(NULL);
}

/*
 * Empties a table that the caller has locked ACCESS EXCLUSIVE.  The SQL command
 * TRUNCATE would be sent to subscribers, which would wait for such a lock of their
 * own.  Subscribers need not follow: no row is undone by it.
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
