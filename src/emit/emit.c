/*
 * emit.c
 *	  Owns appending events to the log, and storing events that are not due yet:
 *	  outbox.emit() and its variants, the trigger of outbox.outgoing, and the check of
 *	  outbox.events that makes a plain INSERT equal to them.
 *
 * emit() writes the current piece of the log directly, without parser, planner and
 * executor.  It does what the executor would do: it sets the column defaults and
 * checks the CHECK constraint.  EXECUTE on emit() is the permission.  No privilege on
 * the table is needed.  If others have put triggers on the table, the row goes through
 * the executor (table_rows.c).
 *
 * The order of the steps in append() matters to the readers (log.c):
 *
 * - The transaction has its xid before it draws a number from the sequence.  So a
 *   transaction that gets its xid after a snapshot was taken also draws a number above
 *   the sequence's value before that snapshot.
 * - The number is drawn after the lock on the piece, which is the last wait.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "utils/acl.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/xid8.h"

#include "base/compat.h"
#include "base/crash_point.h"
#include "base/outbox.h"
#include "base/table_rows.h"
#include "base/version.h"
#include "emit/as_text.h"
#include "emit/dedup.h"
#include "emit/emit.h"
#include "emit/emit_topics.h"
#include "log/event_number.h"
#include "log/event_stamp.h"
#include "server/wakeup.h"

/* ---------------------------------------------------------------------
 * Appending
 * ---------------------------------------------------------------------
 */

/* A slot for a row whose columns are NULL, also dropped ones. */
static TupleTableSlot *
new_row(Relation rel)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts);
	return slot;
}

static void
set_column(TupleTableSlot *slot, int attnum, const void *value)
{
	slot->tts_values[attnum - 1] = PointerGetDatum(value);
	slot->tts_isnull[attnum - 1] = value == NULL;
}

static void
set_stamp(TupleTableSlot *slot, int attnum, Datum value)
{
	slot->tts_values[attnum - 1] = value;
	slot->tts_isnull[attnum - 1] = false;
}

static void
set_time(TupleTableSlot *slot, int attnum, TimestampTz time, bool is_set)
{
	slot->tts_values[attnum - 1] = TimestampTzGetDatum(time);
	slot->tts_isnull[attnum - 1] = !is_set;
}

/* Writes a row that has its id and stamps.  Both tables have these columns together. */
static void
write_row(Relation rel, TupleTableSlot *slot, AttrNumber topic, const OutboxNewEvent *e)
{
	set_column(slot, topic, e->topic);
	set_column(slot, topic + 1, e->type);
	set_column(slot, topic + 2, e->key);
	set_column(slot, topic + 3, e->tenant);
	set_time(slot, topic + 4, e->expires_at, e->expires);
	set_column(slot, topic + 5, e->headers);
	set_column(slot, topic + 6, e->payload);
	set_column(slot, topic + 7, e->body);
	set_column(slot, topic + 8, e->content_type);
	ExecStoreVirtualTuple(slot);
	outbox_insert_row(rel, slot);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
}

/* Writes a checked event into the log.  Makes its id if it has none yet. */
static void
append(const OutboxNewEvent *e, bool has_id, pg_uuid_t *id)
{
	FullTransactionId xid = GetTopFullTransactionId();
	int				  piece = outbox_current_piece();
	Relation		  rel = outbox_log_table_open(&outbox_log_tables()->pieces[piece],
												  RowExclusiveLock);
	TupleTableSlot	 *slot = new_row(rel);
	int64			  epoch = outbox_current_epoch();
	int64			  seq = outbox_number_draw();
	TimestampTz		  now = GetCurrentTimestamp();

	if (!has_id)
		outbox_make_id(now, id);

	set_column(slot, Anum_events_id, id);
	set_stamp(slot, Anum_events_seq, Int64GetDatum(seq));
	set_stamp(slot, Anum_events_xid, FullTransactionIdGetDatum(xid));
	set_stamp(slot, Anum_events_epoch, Int64GetDatum(epoch));
	set_stamp(slot, Anum_events_created_at,
			  TimestampTzGetDatum(e->created_at != 0 ? e->created_at : now));
	set_stamp(slot, Anum_events_piece, Int16GetDatum(piece));
	write_row(rel, slot, Anum_events_topic, e);
	OUTBOX_CRASH_POINT("emit.appended");
}

/* Stores a checked event in outbox.scheduled until it is due. */
static void
schedule(const OutboxNewEvent *e, bool has_id, pg_uuid_t *id)
{
	FullTransactionId xid = GetTopFullTransactionId();
	Relation		  rel = outbox_log_table_open(&outbox_log_tables()->scheduled,
												  RowExclusiveLock);
	TupleTableSlot	 *slot = new_row(rel);
	TimestampTz		  now = GetCurrentTimestamp();

	if (!has_id)
		outbox_make_id(now, id);
	outbox_mark_scheduled(e->deliver_at);

	set_column(slot, Anum_scheduled_id, id);
	set_time(slot, Anum_scheduled_deliver_at, e->deliver_at, true);
	set_stamp(slot, Anum_scheduled_xid, FullTransactionIdGetDatum(xid));
	set_stamp(slot, Anum_scheduled_epoch, Int64GetDatum(outbox_current_epoch()));
	set_time(slot, Anum_scheduled_created_at, e->created_at != 0 ? e->created_at : now,
			 true);
	set_column(slot, Anum_scheduled_dedup_key, e->dedup_key);
	write_row(rel, slot, Anum_scheduled_topic, e);
	OUTBOX_CRASH_POINT("emit.scheduled");
}

/* Writes a checked event where its time says. */
static void
store(const OutboxNewEvent *e, bool has_id, pg_uuid_t *id)
{
	if (e->deferred && e->deliver_at > GetCurrentTimestamp())
		schedule(e, has_id, id);
	else
		append(e, has_id, id);
}

void
outbox_append(const OutboxNewEvent *e, const pg_uuid_t *id)
{
	pg_uuid_t same = *id;

	store(e, true, &same);
}

pg_uuid_t *
outbox_emit(const OutboxNewEvent *e)
{
	pg_uuid_t *id = palloc(sizeof(pg_uuid_t));
	bool	   has_id = e->dedup_key != NULL;

	outbox_check(e, false, true);

	/*
	 * May wait for a transaction that used the same key, so it comes before the
	 * number.
	 */
	if (has_id)
	{
		outbox_make_id(GetCurrentTimestamp(), id);
		if (!outbox_dedup_claim(e, id))
			return id;
	}
	store(e, has_id, id);
	return id;
}

/* ---------------------------------------------------------------------
 * SQL functions
 * ---------------------------------------------------------------------
 */

/* NULL if the argument is. */
#define TEXT_ARG(n) (PG_ARGISNULL(n) ? NULL : PG_GETARG_TEXT_PP(n))
#define BYTEA_ARG(n) (PG_ARGISNULL(n) ? NULL : PG_GETARG_BYTEA_PP(n))
#define JSONB_ARG(n) (PG_ARGISNULL(n) ? NULL : PG_GETARG_JSONB_P(n))

void
outbox_refuse_read_only(const char *function)
{
	if (XactReadOnly)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot execute %s in a read-only transaction", function),
				 RecoveryInProgress() ?
					 errhint("This server is a standby, or a read replica. Connect"
							 " to the primary.") :
					 errhint("Begin it as READ WRITE, or see what has set"
							 " default_transaction_read_only.")));
}

/* The key, which has another type than text in the functions that take anynonarray. */
static text *
key_argument(FunctionCallInfo fcinfo, int n)
{
	Oid			  type = get_fn_expr_argtype(fcinfo->flinfo, n);
	OutboxAsText *as = fcinfo->flinfo->fn_extra;

	if (type == TEXTOID || !OidIsValid(type))
		return PG_GETARG_TEXT_PP(n);
	if (as == NULL)
	{
		as = MemoryContextAlloc(fcinfo->flinfo->fn_mcxt, sizeof(OutboxAsText));
		outbox_as_text_init(as, type, fcinfo->flinfo->fn_mcxt);
		fcinfo->flinfo->fn_extra = as;
	}
	return outbox_as_text(as, PG_GETARG_DATUM(n));
}

/*
 * PostgreSQL has asked for the right when the statement began.  The role may be another one
 * since: by set_config() in it, or because it is a cursor.
 */
static void
refuse_changed_role(Oid function, const char *name)
{
	if (!outbox_emit_topics_none && !outbox_function_callable(function, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for function %s", name),
				 errhint("The role has changed since the statement began. Begin the"
						 " statement as the role that may emit.")));
}

/*
 * The common part of emit() and emit_bytes().  'options' is the number of the first
 * optional argument.
 */
static Datum
emit(FunctionCallInfo fcinfo, OutboxNewEvent *e, const char *function, int options)
{
	outbox_refuse_read_only(function);
	refuse_changed_role(fcinfo->flinfo->fn_oid, function);

	e->topic = TEXT_ARG(0);
	e->key = PG_ARGISNULL(options) ? NULL : key_argument(fcinfo, options);
	e->type = TEXT_ARG(options + 1);
	e->headers = outbox_headers_or_null(JSONB_ARG(options + 2));
	e->deferred = !PG_ARGISNULL(options + 3);
	if (e->deferred)
		e->deliver_at = PG_GETARG_TIMESTAMPTZ(options + 3);
	e->expires = !PG_ARGISNULL(options + 4);
	if (e->expires)
		e->expires_at = PG_GETARG_TIMESTAMPTZ(options + 4);
	e->dedup_key = TEXT_ARG(options + 5);
	e->tenant = TEXT_ARG(options + 6);
	PG_RETURN_UUID_P(outbox_emit(e));
}

/* jsonb's own errors describe the problem with a text, but have no hint. */
static void
add_payload_hint(void *arg)
{
	if (geterrcode() == ERRCODE_STATEMENT_TOO_COMPLEX)
		errhint("A payload may have at most %d levels of nested objects and arrays.",
				OUTBOX_MAX_NESTING);
	else if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_DATA_EXCEPTION)
		errhint(
			"A payload is JSON that the type jsonb can hold. Use outbox.emit_bytes() to send anything else.");
}

/* The payload of an argument of type text or json, which is text that jsonb may refuse. */
static Jsonb *
parse_payload(FunctionCallInfo fcinfo, int argno)
{
	ErrorContextCallback callback;
	Jsonb				*payload;

	if (PG_ARGISNULL(argno))
		return NULL;

	callback.callback = add_payload_hint;
	callback.arg = NULL;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	payload = DatumGetJsonbP(
		DirectFunctionCall1(jsonb_in,
							CStringGetDatum(text_to_cstring(PG_GETARG_TEXT_PP(argno)))));
	error_context_stack = callback.previous;
	return payload;
}

OUTBOX_FUNCTION(outbox_emit_jsonb_1_0, 9)
{
	OutboxNewEvent e = {.payload = JSONB_ARG(1)};

	return emit(fcinfo, &e, "outbox.emit()", 2);
}

OUTBOX_FUNCTION(outbox_emit_text_1_0, 9)
{
	OutboxNewEvent e = {.payload = parse_payload(fcinfo, 1)};

	return emit(fcinfo, &e, "outbox.emit()", 2);
}

OUTBOX_FUNCTION(outbox_emit_bytes_1_0, 10)
{
	OutboxNewEvent e = {.body = BYTEA_ARG(1), .content_type = TEXT_ARG(2)};

	if (e.body == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("body of an event must not be null"),
				 errhint("Pass the bytes to send. They may be empty.")));
	return emit(fcinfo, &e, "outbox.emit_bytes()", 3);
}

/* The types of the columns of outbox.outgoing, in the order of its columns. */
static const Oid outgoing_types[] = {UUIDOID,  TEXTOID,		   TEXTOID,	 TEXTOID,
									 TEXTOID,  TIMESTAMPTZOID, JSONBOID, JSONBOID,
									 BYTEAOID, TEXTOID};

#define NOUTGOING (int) lengthof(outgoing_types)

static bool
is_trigger_of_outgoing(FunctionCallInfo fcinfo)
{
	const TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc		   desc;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_INSTEAD(trigger->tg_event))
		return false;
	desc = RelationGetDescr(trigger->tg_relation);
	if (desc->natts != NOUTGOING)
		return false;
	for (int i = 0; i < NOUTGOING; i++)
		if (TupleDescAttr(desc, i)->atttypid != outgoing_types[i])
			return false;
	return true;
}

/*
 * insert_outgoing(): INSTEAD OF trigger of outbox.outgoing.  The executor has checked
 * the privileges on the view.
 */
OUTBOX_FUNCTION(outbox_insert_outgoing_1_0, 0)
{
	TriggerData	  *trigger = (TriggerData *) fcinfo->context;
	Datum		   row[NOUTGOING];
	bool		   nulls[NOUTGOING];
	OutboxNewEvent e = {.inserted = true};
	pg_uuid_t	   id;
	bool		   has_id;

	if (!is_trigger_of_outgoing(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.insert_outgoing() is the trigger of outbox.outgoing"),
				 errhint("It belongs to no other view.")));
	if (!TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("an event that was emitted does not change"),
				 errhint("Emit another event, or roll back to a savepoint before it.")));

	heap_deform_tuple(trigger->tg_trigtuple, RelationGetDescr(trigger->tg_relation), row,
					  nulls);
#define COLUMN(n, get) (nulls[n] ? NULL : get(row[n]))
	has_id = !nulls[0];
	if (has_id)
		id = *DatumGetUUIDP(row[0]);
	e.topic = COLUMN(1, DatumGetTextPP);
	e.type = COLUMN(2, DatumGetTextPP);
	e.key = COLUMN(3, DatumGetTextPP);
	e.tenant = COLUMN(4, DatumGetTextPP);
	e.expires = !nulls[5];
	if (e.expires)
		e.expires_at = DatumGetTimestampTz(row[5]);
	e.headers = COLUMN(6, DatumGetJsonbP);
	e.payload = COLUMN(7, DatumGetJsonbP);
	e.body = COLUMN(8, DatumGetByteaPP);
	e.content_type = COLUMN(9, DatumGetTextPP);
	outbox_check(&e, false, true);
	append(&e, has_id, &id);
	if (has_id)
		return PointerGetDatum(trigger->tg_trigtuple);
	row[0] = UUIDPGetDatum(&id);
	nulls[0] = false;
	return PointerGetDatum(
		heap_form_tuple(RelationGetDescr(trigger->tg_relation), row, nulls));
}

static ExecutorCheckPerms_hook_type previous_check;

/* Where the extension is not installed, a table may have that name. */
static bool
inserts_into(const OutboxWanted *w, const char *name)
{
	return (w->requiredPerms & ACL_INSERT) && OidIsValid(w->relid) &&
		w->relid == get_relname_relid(name, get_namespace_oid(OUTBOX_SCHEMA, true));
}

/*
 * Triggers do not fire while session_replication_role is replica, as in a process that applies
 * a subscription.  Then an INSERT into outbox.outgoing would succeed and emit nothing, so it
 * is refused.
 */
static void
refuse_without_trigger(const OutboxWanted *w)
{
	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA &&
		inserts_into(w, "outgoing") && get_rel_relkind(w->relid) == RELKIND_VIEW)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg(
				 "outbox.outgoing emits nothing while session_replication_role is replica"),
			 errhint("Call outbox.emit(), which emits there, too.")));
}

/* True if this INSERT is done with the right of another role, by a view or a rule of it. */
static bool
is_lent(const OutboxWanted *w)
{
	return (w->requiredPerms & ACL_INSERT) && OidIsValid(w->checkAsUser) &&
		!has_privs_of_role(GetUserId(), w->checkAsUser);
}

static bool
emits(const List *wanted)
{
	ListCell *cell;

	if (!OidIsValid(get_extension_oid("outbox", true)))
		return false;
	foreach (cell, wanted)
	{
		const OutboxWanted *w = lfirst(cell);

		if (inserts_into(w, "events") || inserts_into(w, "outgoing"))
			return true;
	}
	return false;
}

static bool
check_rights(OUTBOX_WANTED_PARAMETERS)
{
	ListCell *cell;

	foreach (cell, wanted)
	{
		const OutboxWanted *w = lfirst(cell);

		refuse_without_trigger(w);
		if (!outbox_emit_topics_none && is_lent(w) && emits(wanted))
			outbox_check_lender(w->checkAsUser);
	}
	return previous_check == NULL || previous_check(OUTBOX_WANTED_ARGUMENTS);
}

void
outbox_emit_init(void)
{
	previous_check = ExecutorCheckPerms_hook;
	ExecutorCheckPerms_hook = check_rights;
}

/*
 * The CHECK constraint of outbox.events: returns true, or throws the problem.
 *
 * The settings are applied to new events only.  A row of a restore or a subscription
 * was a valid event where it comes from.  If this server's settings refused it, the
 * restore would lose all other rows of the table, too.
 */
OUTBOX_FUNCTION(outbox_check_event_1_0, 9)
{
	OutboxNewEvent e = {.inserted = true,
						.topic = TEXT_ARG(1),
						.type = TEXT_ARG(2),
						.key = TEXT_ARG(3),
						.tenant = TEXT_ARG(4),
						.headers = JSONB_ARG(5),
						.payload = JSONB_ARG(6),
						.body = BYTEA_ARG(7),
						.content_type = TEXT_ARG(8)};

	int64 seq = PG_ARGISNULL(0) ? -1 : PG_GETARG_INT64(0);

	outbox_check(&e, true, seq == 0 || outbox_number_is_new(seq));
	PG_RETURN_BOOL(true);
}
