/*
 * origin.c
 *	  Owns the check whether this log belongs to this database.  A copy must not send
 *	  the events that its original sends.
 *
 * The log is the database's own if it was written in this system, in this database and in
 * these tables.  A restored dump was written in other tables, also where it came from this
 * database or from a physical copy of it.  Its snapshots may be ahead of this system: an
 * event that is emitted now would be taken for one that was read.
 *
 * The row of outbox.origins is made when the log gets its first endpoint, or when
 * retention is due for the first time.  It is made that late because a dump is restored
 * table by table.  A worker that claimed a half-restored log would serve the copy.  For
 * the same reason, a single row of another system or database makes the log a copy.
 *
 * Rows are never removed.  So a log that has endpoints, or events that had an origin, but
 * no row, has lost it.  The same holds for a row that came after another one which is not
 * there.  Without them it is not known which events are the log's own.
 */
#include "base/outbox.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "commands/trigger.h"
#include "utils/inval.h"

#include "base/query.h"
#include "base/settings.h"
#include "base/version.h"
#include "log/event_stamp.h"
#include "log/origin.h"
#include "server/wakeup.h"

/* True if events had an origin, or were written in a copy. */
static bool
events_had_origin(void)
{
	static const char *const tables[] = {"kept_events", "scheduled", "events"};

	for (size_t i = 0; i < lengthof(tables); i++)
		if (outbox_query(psprintf("SELECT 1 FROM outbox.%s"
								  " WHERE epoch <> 0 LIMIT 1",
								  tables[i])) > 0)
			return true;
	return false;
}

OutboxOrigin
outbox_origin(int64 *epoch, bool *zero, bool thorough)
{
	int64 rows, own;
	char *instance;
	bool  lost, used;

	outbox_plan_run(
		"SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE"
		" system_identifier = $1 AND database_oid = $2"
		" AND epoch IN (SELECT w.epoch FROM outbox.own_epochs w)),"
		" pg_catalog.max(epoch), pg_catalog.bool_or(first),"
		" pg_catalog.max(instance_name),"
		" EXISTS (SELECT 1 FROM outbox.origins o WHERE NOT o.first"
		" AND NOT EXISTS (SELECT 1 FROM outbox.origins p"
		" WHERE p.adopted_by = o.epoch)), EXISTS (SELECT 1 FROM outbox.origins)"
		" OR EXISTS (SELECT 1 FROM outbox.endpoint_settings)"
		" FROM outbox.origins WHERE adopted_by IS NULL",
		arg_int8((int64) GetSystemIdentifier()), arg_oid(MyDatabaseId));
	outbox_read_row(0, into_int8(&rows), into_int8(&own), into_int8(epoch),
					into_bool(zero), into_text(&instance), into_bool(&lost),
					into_bool(&used));
	if (lost)
		return OUTBOX_ORIGIN_LOST;
	if (rows == 0)
		return used || (thorough && events_had_origin()) ? OUTBOX_ORIGIN_LOST :
														   OUTBOX_ORIGIN_NONE;
	if (rows != own)
		return OUTBOX_ORIGIN_FOREIGN;
	return strcmp(instance, outbox_instance_name) == 0 ? OUTBOX_ORIGIN_OURS :
														 OUTBOX_ORIGIN_OTHER_INSTANCE;
}

static int64
random_epoch(void)
{
	uint64 epoch;

	do
	{
		if (!pg_strong_random(&epoch, sizeof(epoch)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random numbers")));
		epoch &= PG_INT64_MAX;
	} while (epoch == 0);
	return (int64) epoch;
}

static void
make_origin(int64 epoch, bool first)
{
	outbox_query("INSERT INTO outbox.own_epochs VALUES ($1)", arg_int8(epoch));
	outbox_query("INSERT INTO outbox.origins"
				 " (epoch, system_identifier, database_oid, instance_name, first)"
				 " VALUES ($1, $2, $3, $4, $5)",
				 arg_int8(epoch), arg_int8((int64) GetSystemIdentifier()),
				 arg_oid(MyDatabaseId), arg_text(outbox_instance_name), arg_bool(first));
}

/*
 * The log may come from a dump of a log that had no origin, either.  Its events are in
 * the past, but this system's transactions may not have reached their xids yet.  Such
 * events get the lowest xid.
 */
static void
pull_back_events(void)
{
	FullTransactionId next = ReadNextFullTransactionId();

	if (outbox_query("SELECT 1 FROM outbox.events WHERE xid >= $1 LIMIT 1",
					 arg_xid8(next)) > 0)
		outbox_query("UPDATE outbox.events SET xid = $2 WHERE xid >= $1", arg_xid8(next),
					 arg_xid8(FullTransactionIdFromU64(FirstNormalTransactionId)));
}

OutboxOrigin
outbox_origin_claim(void)
{
	OutboxOrigin origin;
	int64		 epoch;
	bool		 zero;

	/*
	 * One session at a time makes the row.  The lock conflicts with that of an INSERT,
	 * and stays until the transaction ends.  So it is taken only where there is no row
	 * yet: one open transaction would else stop all that create an endpoint.
	 */
	origin = outbox_origin(&epoch, &zero, true);
	if (origin != OUTBOX_ORIGIN_NONE)
		return origin;
	outbox_query("LOCK TABLE outbox.origins IN SHARE ROW EXCLUSIVE MODE");
	origin = outbox_origin(&epoch, &zero, true);
	if (origin != OUTBOX_ORIGIN_NONE)
		return origin;

	/* The snapshot of this transaction may be older than a row that was made meanwhile. */
	if (outbox_current_epoch() != 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update"),
				 errdetail("Another transaction has used this log for the first time."),
				 errhint("Repeat the transaction.")));
	make_origin(random_epoch(), true);
	pull_back_events();
	return OUTBOX_ORIGIN_OURS;
}

/* Closes all former origins and makes a new one.  The caller has locked the table. */
static void
own(int64 epoch)
{
	outbox_query("UPDATE outbox.origins SET adopted_by = $1 WHERE adopted_by IS NULL",
				 arg_int8(epoch));
	make_origin(epoch, outbox_query("SELECT 1 FROM outbox.origins LIMIT 1") == 0);
}

/*
 * claim_log(NULL): the first thing that create_endpoint() does.  claim_log(epoch): the last
 * one of adopt().
 */
OUTBOX_FUNCTION(outbox_claim_log_1_0, 1)
{
	SPI_connect();
	if (!PG_ARGISNULL(0))
		own(PG_GETARG_INT64(0));
	else if (outbox_origin_claim() == OUTBOX_ORIGIN_LOST)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("outbox.origins lacks rows that this log had"),
			 errhint(
				 "SELECT outbox.adopt() first, once it is certain that no other database sends these events.")));
	SPI_finish();
	PG_RETURN_VOID();
}

/* log_owner(): the origin as a word. */
OUTBOX_FUNCTION(outbox_log_owner_1_0, 0)
{
	static const char *const words[] = {
		[OUTBOX_ORIGIN_NONE] = "nobody",
		[OUTBOX_ORIGIN_OURS] = "us",
		[OUTBOX_ORIGIN_FOREIGN] = "another",
		[OUTBOX_ORIGIN_OTHER_INSTANCE] = "another instance",
		[OUTBOX_ORIGIN_LOST] = "not known",
	};
	OutboxOrigin origin;
	int64		 epoch;
	bool		 zero;

	SPI_connect();
	origin = outbox_origin(&epoch, &zero, true);
	SPI_finish();
	PG_RETURN_TEXT_P(cstring_to_text(words[origin]));
}

/*
 * origins_changed(): the trigger.  Sessions and workers cache the rows, and a worker
 * has to notice that they have changed since it began.
 */
OUTBOX_FUNCTION(outbox_origins_changed_1_0, 0)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.origins_changed() is a trigger function"),
				 errhint("It belongs to outbox.origins and outbox.emit_topics.")));
	CacheInvalidateRelcache(trigger->tg_relation);
	outbox_mark(OUTBOX_MARK_CHANGED);
	PG_RETURN_POINTER(NULL);
}
