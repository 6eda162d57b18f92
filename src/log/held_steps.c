/*
 * held_steps.c
 *	  Owns the view outbox.held_steps.
 */
#include "base/outbox.h"

#include "funcapi.h"

#include "base/settings.h"
#include "base/table_rows.h"
#include "base/version.h"
#include "log/step.h"

/* The reason in outbox.held_steps.  The list of values is closed. */
static const char *
reason_of(const OutboxHold *hold)
{
	if (hold->locked)
		return "locked";
	if (hold->step == OUTBOX_STEP_SEND)
		return "stuck";
	if (hold->sqlerrcode == ERRCODE_INSUFFICIENT_PRIVILEGE)
		return "privilege";
	if (hold->sqlerrcode == ERRCODE_QUERY_CANCELED)
		return "cancelled";
	switch (ERRCODE_TO_CATEGORY(hold->sqlerrcode))
	{
		case ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION:
			return "missing";
		case ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION:
			return "constraint";
		case ERRCODE_DATA_EXCEPTION:
			return "data";
		case ERRCODE_INSUFFICIENT_RESOURCES:
			return "resources";
	}
	if (hold->sqlerrcode == ERRCODE_DATA_CORRUPTED ||
		hold->sqlerrcode == ERRCODE_INDEX_CORRUPTED)
		return "data";
	return "error";
}

/* True if it is of a worker that ended when fewer were wanted, and is not started again. */
static bool
is_left_behind(const OutboxDatabase *db, const OutboxHold *hold)
{
	return db != NULL && hold->worker >= outbox_workers_per_database &&
		db->workers[hold->worker].pid == 0;
}

/* outbox.step_holds(): the holds of this database's workers. */
OUTBOX_FUNCTION(outbox_step_holds_1_0, 0)
{
	const OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);
	OutboxHold			 *copy = palloc(sizeof(OutboxHold) * OUTBOX_MAX_HOLDS);
	OutboxRows			  row = {0};
	TimestampTz			  now = GetCurrentTimestamp();
	int					  n = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (outbox_shared == NULL)
		return (Datum) 0;
	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	for (int i = 0; i < OUTBOX_MAX_HOLDS; i++)
	{
		const OutboxHold *h = &outbox_shared->holds[i];

		if (h->dboid == MyDatabaseId &&
			(h->step == OUTBOX_STEP_SEND ? h->next_try_at > now : !is_left_behind(db, h)))
			copy[n++] = *h;
	}
	LWLockRelease(outbox_shared->lock);
	for (int i = 0; i < n; i++)
	{
		const OutboxHold *h = &copy[i];

		put_value(&row, Int32GetDatum(h->worker + 1));
		put_text(&row, outbox_step_names[h->step]);
		put_if(&row, h->endpoint_id != 0, Int32GetDatum(h->endpoint_id));
		put_text(&row, reason_of(h));
		put_text(&row, unpack_sql_state(h->sqlerrcode));
		put_text(&row, h->error);
		put_value(&row, Int64GetDatum(h->failures));
		put_value(&row, TimestampTzGetDatum(h->since));
		put_value(&row, TimestampTzGetDatum(h->next_try_at));
		outbox_add_row(fcinfo, &row);
	}
	return (Datum) 0;
}
