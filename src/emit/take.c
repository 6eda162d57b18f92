/*
 * take.c
 *	  Owns the trigger that makes events of the rows which a subscription brings from a
 *	  server without the library (sql/source.sql, doc/follow.md).
 *
 * The rows arrive in two tables of text columns without constraints, so nothing else
 * judges them.  The trigger writes each event in the transaction of the subscription's
 * process, as emit() would, and stores no row in these tables.  A row that cannot be an
 * event is set aside: the subscription would stop at an error, with all that follows.  It
 * does at one that says nothing about the row, and tries again.
 *
 * Rows that outbox.follow() has read before the subscription began come once more.  A
 * snapshot of the source says which they are.  If this server or the source was restored or
 * promoted, rows may be missing before those that come now.  Then none is taken: the
 * keeper follows the source anew (worker/source_keeper.c).
 */
#include "base/outbox.h"

#include "access/htup_details.h"
#include "catalog/pg_subscription.h"
#include "commands/trigger.h"
#include "mb/pg_wchar.h"
#include "replication/logicalworker.h"
#include "replication/worker_internal.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/encoding.h"
#include "base/query.h"
#include "base/version.h"
#include "emit/emit.h"
#include "log/event_stamp.h"
#include "log/log_scan.h"
#include "log/step.h"
#include "server/taken.h"

/* The columns of both tables. */
enum
{
	TAKEN_SOURCE,
	TAKEN_ID,
	TAKEN_XID,
	TAKEN_CREATED_AT,
	TAKEN_DELIVER_AT,
	TAKEN_TOPIC,
	TAKEN_TYPE,
	TAKEN_KEY,
	TAKEN_TENANT,
	TAKEN_EXPIRES_AT,
	TAKEN_HEADERS,
	TAKEN_PAYLOAD,
	TAKEN_BODY,
	TAKEN_CONTENT_TYPE,
	NTAKEN
};

/* More than a text of an event has: a source allows 1 MB of bytes. */
#define TAKEN_BYTES (4 * 1024 * 1024)

/* The subscription of this process. */
static struct
{
	Oid	  subscription; /* InvalidOid: not read yet */
	char *name;			/* of the source */
	Datum taken;		/* pg_snapshot at the source: all that it sees is here */
} source;

/* A row that arrives, and the event that it becomes. */
typedef struct Taken
{
	Datum		  *column; /* also columns that were added to the table by hand */
	bool		  *null;
	pg_uuid_t	   id;
	OutboxNewEvent event;
} Taken;

/* Reads which source the subscription of this process belongs to. */
static void
read_source(void)
{
	MemoryContext old;
	bool		  same;
	char		 *taken;

	SPI_connect();
	if (outbox_query("SELECT same, name, taken::pg_catalog.text FROM outbox.source_of($1)"
					 " WHERE name IS NOT NULL",
					 arg_oid(MySubscription->oid)) == 0)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("subscription \"%s\" was not made by outbox.follow()",
					MySubscription->name),
			 errhint(
				 "Drop it. outbox.follow() makes a subscription to a source of events.")));
	old = MemoryContextSwitchTo(TopMemoryContext);
	outbox_read_row(0, into_bool(&same), into_text(&source.name), into_text(&taken));
	if (!same)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("this server or the source was restored or promoted"),
			 errhint(
				 "A process of outbox follows the source anew. outbox.sources shows its state.")));
	source.taken = DirectFunctionCall1(pg_snapshot_in, CStringGetDatum(taken));
	MemoryContextSwitchTo(old);
	source.subscription = MySubscription->oid;
	SPI_finish();
}

/* True if the row is here. */
static bool
was_taken(const Taken *t)
{
	Datum		xid;
	const char *number = t->null[TAKEN_XID] ? "" :
											  TextDatumGetCString(t->column[TAKEN_XID]);

	if (number[0] == '\0' || number[strspn(number, "0123456789")] != '\0')
		return false;
	xid = FullTransactionIdGetDatum(FullTransactionIdFromU64(strtou64(number, NULL, 10)));
	return DatumGetBool(DirectFunctionCall2(pg_visible_in_snapshot, xid, source.taken));
}

/* The value of a column by the input function of its type, or NULL. */
static void *
read_column(const Taken *t, int i, PGFunction input)
{
	if (t->null[i])
		return NULL;
	return DatumGetPointer(
		DirectFunctionCall1(input, CStringGetDatum(TextDatumGetCString(t->column[i]))));
}

/* Returns false if there is none. */
static bool
read_time(const Taken *t, int i, TimestampTz *time)
{
	if (t->null[i])
		return false;
	*time = DatumGetTimestampTz(
		DirectFunctionCall3(timestamptz_in,
							CStringGetDatum(TextDatumGetCString(t->column[i])),
							ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
	return true;
}

/* Throws if the row cannot be an event.  Writes nothing. */
static void
read_event(void *arg)
{
	Taken		   *t = arg;
	OutboxNewEvent *e = &t->event;
	pg_uuid_t	   *id = read_column(t, TAKEN_ID, uuid_in);

#define TEXT(i) (t->null[i] ? NULL : DatumGetTextPP(t->column[i]))
	e->topic = TEXT(TAKEN_TOPIC);
	e->type = TEXT(TAKEN_TYPE);
	e->key = TEXT(TAKEN_KEY);
	e->tenant = TEXT(TAKEN_TENANT);
	e->content_type = TEXT(TAKEN_CONTENT_TYPE);
	e->headers = outbox_headers_or_null(read_column(t, TAKEN_HEADERS, jsonb_in));
	e->payload = read_column(t, TAKEN_PAYLOAD, jsonb_in);
	e->body = read_column(t, TAKEN_BODY, byteain);
	e->deferred = read_time(t, TAKEN_DELIVER_AT, &e->deliver_at);
	e->expires = read_time(t, TAKEN_EXPIRES_AT, &e->expires_at);
	if (!read_time(t, TAKEN_CREATED_AT, &e->created_at) ||
		TIMESTAMP_NOT_FINITE(e->created_at))
		e->created_at = 0;
	if (id == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("id of an event must not be null"),
				 errhint("Its insert into outbox.events at the source made none.")));
	t->id = *id;
	outbox_check(e, false, true);
}

/*
 * True if another event has its id, where it would be written: a source may have an id
 * twice, and so may two sources.  In doubt, the write waits for the other transaction.
 */
static bool
id_is_taken(const Taken *t)
{
	const OutboxNewEvent *e = &t->event;
	const Oid			 *table = &outbox_log_tables()->pieces[outbox_current_piece()];

	if (e->deferred && e->deliver_at > GetCurrentTimestamp())
		table = &outbox_log_tables()->scheduled;
	return outbox_scan_id(table, &t->id) == OUTBOX_ID_TAKEN;
}

/*
 * Replaces texts that are none in the encoding of this database, and the end of very long
 * ones.  Only a hostile source has them.  Returns false if there were any.
 */
static bool
make_readable(Taken *t)
{
	bool readable = true;

	for (int i = 0; i < NTAKEN; i++)
	{
		text  *value = t->null[i] ? NULL : DatumGetTextPP(t->column[i]);
		size_t len = value == NULL ? 0 : VARSIZE_ANY_EXHDR(value);

		if (len <= TAKEN_BYTES &&
			(len == 0 ||
			 pg_verify_mbstr(GetDatabaseEncoding(), VARDATA_ANY(value), (int) len, true)))
			continue;
		t->column[i] = CStringGetTextDatum(
			outbox_foreign_text(VARDATA_ANY(value), Min(len, TAKEN_BYTES)));
		readable = false;
	}
	return readable;
}

/* True if it says nothing about the event: a lock, a lack of something, a file, an index. */
static bool
is_passing(const OutboxStepError *e)
{
	int category = ERRCODE_TO_CATEGORY(e->sqlerrcode);

	return outbox_step_was_locked(e) || category == ERRCODE_TRANSACTION_ROLLBACK ||
		category == ERRCODE_INSUFFICIENT_RESOURCES || category == ERRCODE_SYSTEM_ERROR ||
		e->sqlerrcode == ERRCODE_DATA_CORRUPTED ||
		e->sqlerrcode == ERRCODE_INDEX_CORRUPTED;
}

/* Stores the row in outbox.refused_events, with the reason. */
static void
set_row_aside(const TriggerData *trigger, Taken *t, const char *reason)
{
	TupleDesc desc = RelationGetDescr(trigger->tg_relation);
	Datum	  event = heap_copy_tuple_as_datum(heap_form_tuple(desc, t->column, t->null),
											   desc);

	SPI_connect();
	outbox_query("INSERT INTO outbox.refused_events (source, event, error)"
				 " SELECT COALESCE($1, r.source), pg_catalog.to_jsonb(r.*), $3"
				 " FROM (SELECT ($2).*) r",
				 arg_text(source.name),
				 arg_datum(RelationGetForm(trigger->tg_relation)->reltype, event),
				 arg_text(reason));
	SPI_finish();
}

static bool
is_trigger_of_taken(FunctionCallInfo fcinfo)
{
	const TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc		   desc;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		!TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		return false;
	desc = RelationGetDescr(trigger->tg_relation);
	if (desc->natts < NTAKEN)
		return false;
	for (int i = 0; i < NTAKEN; i++)
		if (TupleDescAttr(desc, i)->atttypid != TEXTOID)
			return false;
	return true;
}

/* take(): the trigger of outbox.emitted and outbox.deferred. */
OUTBOX_FUNCTION(outbox_take_1_0, 0)
{
	TriggerData	   *trigger = (TriggerData *) fcinfo->context;
	Taken			t = {0};
	OutboxStepError refused;
	Oid				subscription = InvalidOid;
	bool			readable;

	if (!is_trigger_of_taken(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg(
					 "outbox.take() is a trigger of outbox.emitted and outbox.deferred"),
				 errhint("It belongs to no other table.")));
	t.column = palloc(sizeof(Datum) *
					  RelationGetNumberOfAttributes(trigger->tg_relation));
	t.null = palloc(sizeof(bool) * RelationGetNumberOfAttributes(trigger->tg_relation));
	heap_deform_tuple(trigger->tg_trigtuple, RelationGetDescr(trigger->tg_relation),
					  t.column, t.null);
	readable = make_readable(&t);
	if (IsLogicalWorker())
	{
		if (source.subscription != MySubscription->oid)
			read_source();
		if (was_taken(&t))
			return PointerGetDatum(NULL);
		subscription = MySubscription->oid;
	}
	else if (!t.null[TAKEN_SOURCE])
	{
		char *name = TextDatumGetCString(t.column[TAKEN_SOURCE]);

		subscription = get_subscription_oid(psprintf("outbox_%s", name), true);
	}
	if (!readable)
		set_row_aside(trigger, &t,
					  "a text is too long, or not of this database's encoding");
	else if (!outbox_step_try_part(read_event, &t, &refused))
	{
		if (is_passing(&refused))
			ereport(ERROR,
					(errcode(refused.sqlerrcode),
					 errmsg_internal("%s", refused.message)));
		set_row_aside(trigger, &t, refused.message);
	}
	else if (id_is_taken(&t))
		set_row_aside(trigger, &t, "another event has this id");
	else
	{
		outbox_append(&t.event, &t.id);
		outbox_taken_add(subscription);
	}
	return PointerGetDatum(NULL);
}
