/*
 * event_check.c
 *	  Owns the rules for an event.  Each has an error with a hint.
 *
 * emit() and the CHECK constraint of outbox.events both use them.  So a direct INSERT
 * fails for the same reasons with the same texts.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/table.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/encoding.h"
#include "base/json_members.h"
#include "base/json_text.h"
#include "base/names.h"
#include "base/settings.h"
#include "base/version.h"
#include "emit/emit.h"
#include "emit/emit_topics.h"
#include "log/event_stamp.h"

/* As much of a value as fits into a message: at most 100 bytes. */
static const char *
excerpt(const char *s, size_t len)
{
	return pnstrdup(s, pg_mbcliplen(s, (int) len, 100));
}

static void
check_length(const char *what, const text *value, size_t max)
{
	size_t len = VARSIZE_ANY_EXHDR(value);

	if (len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of an event must not be empty", what),
				 errhint("Pass 1 to %zu bytes. An optional value can be left out.",
						 max)));
	if (len > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of an event is too long", what),
				 errdetail("It has %zu bytes; at most %zu are allowed.", len, max),
				 errhint("Pass a shorter value. Longer data belongs in the payload.")));
}

/* Checks a value that is sent as a header of its own. */
static void
check_line(const char *what, const text *value)
{
	const char *problem = outbox_text_problem(VARDATA_ANY(value),
											  VARSIZE_ANY_EXHDR(value));

	if (problem)
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid %s: %s", what, problem),
			 errhint(
				 "It is sent as an HTTP header. Remove line breaks, tabs and other control characters.")));
}

static void
check_not_blank(const text *content_type)
{
	const char *s = VARDATA_ANY(content_type);
	int			len = VARSIZE_ANY_EXHDR(content_type);

	while (len > 0 && s[len - 1] == ' ')
		len--;
	if (len == 0)
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid content_type: it has only spaces"),
			 errhint(
				 "Pass the media type of the bytes, like 'application/octet-stream'.")));
}

static void
check_tenant(const text *tenant)
{
	size_t		len = VARSIZE_ANY_EXHDR(tenant);
	const char *problem = len == 0 ? "it is empty" :
		len > OUTBOX_MAX_TENANT	   ? "it is too long" :
									 outbox_text_problem(VARDATA_ANY(tenant), len);

	if (problem)
		ereport(ERROR,
				(OUTBOX_INVALID("tenant"), errmsg("invalid tenant: %s", problem),
				 errhint("A tenant is the name or number of a customer: 1 to %d bytes,"
						 " no control characters. NULL: none.",
						 OUTBOX_MAX_TENANT)));
}

/*
 * A role that may truncate the log may insert reserved topics.  The owner must, so that
 * a restored dump brings back the events that outbox itself had emitted.  The worker's
 * role must, because it emits them.
 */
static bool
rules_log(Oid role)
{
	return pg_class_aclcheck(outbox_log_tables()->events, role, ACL_TRUNCATE) ==
		ACLCHECK_OK;
}

static void
check_topic(const text *topic, bool restoring)
{
	const char *data = VARDATA_ANY(topic);
	size_t		len = VARSIZE_ANY_EXHDR(topic);
	const char *problem = outbox_topic_problem(data, len);

	if (problem)
		ereport(
			ERROR,
			(OUTBOX_INVALID("topic"),
			 errmsg("invalid topic \"%s\": %s", excerpt(data, len), problem),
			 errhint(
				 "A topic is made of letters, digits, \"_\" and \"-\", in segments joined by dots, like \"order.created\".")));
	if (outbox_topic_reserved(data, len) && !(restoring && rules_log(GetUserId())))
		ereport(
			ERROR,
			(errcode(ERRCODE_RESERVED_NAME),
			 err_generic_string(PG_DIAG_COLUMN_NAME, "topic"),
			 errmsg("topic \"%s\" is reserved", excerpt(data, len)),
			 errhint(
				 "Topics that begin with \"outbox.\" belong to outbox itself. Choose another name.")));
}

/* The worker's role is bound by no patterns: it writes events that others have emitted. */
static void
check_role_allowed(Oid role, OutboxRoleTest test, const text *topic)
{
	const char *data = VARDATA_ANY(topic);
	size_t		len = VARSIZE_ANY_EXHDR(topic);

	if (!rules_log(role) && !outbox_emit_topics_allow(role, test, data, len))
		ereport(
			ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("role \"%s\" may not emit topic \"%s\"",
					GetUserNameFromId(role, false), excerpt(data, len)),
			 errhint(
				 "The owner of the extension can allow it: outbox.grant_emit(role, topics).")));
}

/* The row would be checked as the role that runs the statement, which is bound to no topics. */
void
outbox_check_lender(Oid role)
{
	if (!rules_log(role) && !outbox_emit_topics_allow(role, has_privs_of_role, NULL, 0))
		ereport(
			ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("role \"%s\" may not let other roles emit by a view or a rule",
					GetUserNameFromId(role, false)),
			 errhint(
				 "It may emit some topics only. Grant the other role the right to emit: outbox.grant_emit(role, topics).")));
}

static bool
may_insert(Oid role)
{
	Oid events = outbox_log_tables()->events;

	return pg_class_aclcheck(events, role, ACL_INSERT) == ACLCHECK_OK ||
		pg_attribute_aclcheck(events, Anum_events_topic, role, ACL_INSERT) == ACLCHECK_OK;
}

/*
 * A role may insert without a right of its own: by a view, or because set_config() made it the
 * role when PostgreSQL had asked for the right already.  So the user of the session counts, too,
 * with all roles that it can have been.
 */
static void
check_allowed(const OutboxNewEvent *e)
{
	if (outbox_emit_topics_none)
		return;
	check_role_allowed(GetUserId(), has_privs_of_role, e->topic);
	if (e->inserted && !may_insert(GetUserId()))
		check_role_allowed(GetSessionUserId(), is_member_of_role, e->topic);
}

/*
 * True if outbox.event_types lists the topic.  With the latest snapshot, not the
 * transaction's: a REPEATABLE READ transaction that is older than a change must not emit what
 * is not listed any more.
 */
static bool
is_listed(const char *topic, size_t len)
{
	Relation	rel = outbox_table_open("event_types", AccessShareLock);
	Oid			index = get_relname_relid("event_types_pkey", RelationGetNamespace(rel));
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	bool		found;

	ScanKeyInit(&key, 1 /* topic */, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(topic, len)));
	scan = systable_beginscan(rel, index, OidIsValid(index), snapshot, 1, &key);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}

static void
check_listed(const text *topic)
{
	const char *data = VARDATA_ANY(topic);
	size_t		len = VARSIZE_ANY_EXHDR(topic);

	if (!outbox_topic_reserved(data, len) && !is_listed(data, len))
		ereport(
			ERROR,
			(OUTBOX_INVALID("topic"),
			 errmsg("topic \"%s\" is not listed in outbox.event_types",
					excerpt(data, len)),
			 errhint(
				 "outbox.require_event_types demands it. Correct the topic, or list it with outbox.set_event_type().")));
}

void
outbox_check_headers(Jsonb *headers, bool of_event)
{
	const char *owner = of_event ? "an event" : "an endpoint";
	int			most = of_event ? OUTBOX_MAX_EVENT_HEADERS : OUTBOX_MAX_ENDPOINT_HEADERS;
	char	   *names[Max(OUTBOX_MAX_EVENT_HEADERS, OUTBOX_MAX_ENDPOINT_HEADERS)];
	int			nnames = 0;
	size_t		total = 0;
	OutboxMembers m;

	if (!JB_ROOT_IS_OBJECT(headers))
		ereport(ERROR,
				(OUTBOX_INVALID("headers"),
				 errmsg("headers of %s must be a JSON object", owner),
				 errhint(
					 "Pass a flat object of strings, like {\"X-Tenant\": \"acme\"}.")));
	if ((int) JB_ROOT_COUNT(headers) > most)
		ereport(
			ERROR,
			(OUTBOX_INVALID("headers"), errmsg("%s has too many headers", owner),
			 errdetail("It has %d; at most %d are allowed.", (int) JB_ROOT_COUNT(headers),
					   most),
			 of_event ?
				 errhint("Leave some out, or put them in the payload.") :
				 errhint(
					 "Leave some out. Some receivers read at most 100 header lines, and those of the event count, too.")));

	m = outbox_members(headers);
	while (outbox_members_next(&m))
	{
		const char *name = m.name.val.string.val;
		int			name_len = m.name.val.string.len;
		const char *problem = outbox_header_name_problem(name, name_len, of_event);

		if (problem)
			ereport(
				ERROR,
				(OUTBOX_INVALID("headers"),
				 errmsg("invalid header \"%s\": %s", excerpt(name, name_len), problem),
				 errhint(
					 "Choose another name. \"X-\" and a name of your own is always free.")));
		if (outbox_header_name_among(name, name_len, names, nnames))
			ereport(ERROR,
					(OUTBOX_INVALID("headers"),
					 errmsg("invalid header \"%s\": another one has the same name",
							excerpt(name, name_len)),
					 errhint("%s", OUTBOX_HEADER_TWICE_HINT)));
		names[nnames++] = pnstrdup(name, name_len);

		/* No message repeats a value, because that may be a token. */
		if (m.value.type != jbvString)
			ereport(
				ERROR,
				(OUTBOX_INVALID("headers"),
				 errmsg("value of header \"%s\" must be a string",
						excerpt(name, name_len)),
				 errhint(
					 "Pass a flat object of strings, like {\"X-Tenant\": \"acme\"}.")));
		problem = outbox_text_problem(m.value.val.string.val, m.value.val.string.len);
		if (problem)
			ereport(ERROR,
					(OUTBOX_INVALID("headers"),
					 errmsg("invalid value of header \"%s\": %s", excerpt(name, name_len),
							problem),
					 errhint("Remove line breaks, tabs and other control characters.")));
		total += name_len + m.value.val.string.len;
	}
	if (total > OUTBOX_MAX_HEADERS)
		ereport(
			ERROR,
			(OUTBOX_INVALID("headers"), errmsg("headers of %s are too long", owner),
			 errdetail("Names and values have %zu bytes; at most %d are allowed.", total,
					   OUTBOX_MAX_HEADERS),
			 of_event ?
				 errhint("Long values belong in the payload.") :
				 errhint(
					 "Shorten them. Most receivers refuse a request with longer ones.")));
}

static void
check_size(const char *what, const char *about, size_t size)
{
	if (size > (size_t) outbox_max_payload_size)
		ereport(
			ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 err_generic_string(PG_DIAG_COLUMN_NAME, what),
			 errmsg("%s of an event is too large", what),
			 errdetail("It has %s%zu bytes; outbox.max_payload_size allows %d.", about,
					   size, outbox_max_payload_size),
			 errhint(
				 "Send a reference to the data instead of the data, or raise outbox.max_payload_size.")));
}

/*
 * jsonb can be built deeper than its text can be read back.  Such an event could be
 * emitted, but could not be restored from a dump, and most receivers could not read
 * it.
 */
static void
check_nesting(int depth)
{
	if (depth > OUTBOX_MAX_NESTING)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 err_generic_string(PG_DIAG_COLUMN_NAME, "payload"),
				 errmsg("payload of an event is nested too deeply"),
				 errdetail("At most %d levels of nested objects and arrays are allowed.",
						   OUTBOX_MAX_NESTING),
				 errhint("Send a flatter payload, or bytes with outbox.emit_bytes().")));
}

/*
 * Returns at most 5 more than the bytes of a numeric's text.  A numeric on disk begins with
 * the number of digits behind the point, and the number of groups of four before it, less 1.
 */
static size_t
number_bound(const char *number)
{
	uint16 bits;
	int16  weight;

	memcpy(&bits, number, sizeof(bits));
	if ((bits & 0xC000) == 0x8000)
		return (bits & 0x40 ? 6 : 6 + 4 * (bits & 0x3F)) + ((bits & 0x1F80) >> 7);
	memcpy(&weight, number + sizeof(bits), sizeof(weight));
	return 6 + 4 * Max(weight, 0) + (bits & 0x3FFF);
}

/*
 * Returns an upper bound for the bytes of a container's text, without making the text.
 * A byte of a string becomes at most "\u00xx".  The text has at least an eighth of it.
 */
static size_t
text_bound(const JsonbContainer *container, int depth)
{
	int n = JsonContainerSize(container) * (JsonContainerIsObject(container) ? 2 : 1);
	const char *data = (const char *) &container->children[n];
	uint32		start = 0;
	size_t		bound = 2;

	check_nesting(depth);
	for (int i = 0; i < n; i++)
	{
		JEntry entry = container->children[i];
		uint32 end = start;

		JBE_ADVANCE_OFFSET(end, entry);
		bound += 2; /* ", " or ": " */
		if (JBE_ISSTRING(entry))
			bound += 2 + 6 * (size_t) (end - start);
		else if (JBE_ISNUMERIC(entry))
			bound += number_bound(VARDATA(data + INTALIGN(start)));
		else if (JBE_ISCONTAINER(entry))
			bound += text_bound((const JsonbContainer *) (data + INTALIGN(start)),
								depth + 1);
		else
			bound += 5; /* "false" */
		start = end;
	}
	return bound;
}

/*
 * The limit applies to the text that is sent.  A short numeric like 1e100000 is a long
 * text.  The text is made only if its bounds are below and above the limit.
 */
void
outbox_check_payload(Jsonb *payload, bool sized)
{
	/* text_bound() also checks the nesting, so it is called in any case. */
	size_t		   bound = text_bound(&payload->root, 1);
	StringInfoData text;

	if (bound <= (size_t) outbox_max_payload_size || !sized)
		return;
	check_size("payload", "more than ", bound / 8);
	initStringInfo(&text);
	outbox_json_text(&text, payload);
	check_size("payload", "", text.len);
	pfree(text.data);
}

static void
check_times(const OutboxNewEvent *e)
{
	if (TIMESTAMP_IS_NOEND(e->deliver_at))
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("deliver_at of an event must not be infinity"),
			 errhint(
				 "Pass a time in the future, or emit the event when it is to be delivered.")));
	if (e->expires && e->expires_at <= e->deliver_at)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("expires_at of an event must be after deliver_at"),
				 errdetail("It would expire at %s, and be delivered from %s on.",
						   pstrdup(timestamptz_to_str(e->expires_at)),
						   pstrdup(timestamptz_to_str(e->deliver_at))),
				 errhint("Pass a later expires_at, or leave it out.")));
}

void
outbox_check(const OutboxNewEvent *e, bool restoring, bool fresh)
{
	if (e->topic == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 err_generic_string(PG_DIAG_COLUMN_NAME, "topic"),
				 errmsg("topic of an event must not be null"),
				 errhint("Pass the name of what happened, like 'order.created'.")));
	check_topic(e->topic, restoring);
	if (fresh)
		check_allowed(e);
	if (outbox_require_event_types && fresh)
		check_listed(e->topic);

	if (e->type)
	{
		check_length("type", e->type, OUTBOX_MAX_TYPE);
		check_line("type", e->type);
	}
	if (e->key)
		check_length("key", e->key, OUTBOX_MAX_KEY);
	if (e->tenant)
		check_tenant(e->tenant);
	if (outbox_headers_or_null(e->headers))
		outbox_check_headers(e->headers, true);
	if (e->deferred)
		check_times(e);
	if (e->dedup_key)
		check_length("dedup_key", e->dedup_key, OUTBOX_MAX_DEDUP_KEY);

	if (e->payload && e->body)
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("an event has either a payload or a body, not both"),
			 errhint(
				 "Set payload for JSON, or body and content_type for anything else.")));
	if (e->payload)
	{
		if (e->content_type)
			ereport(
				ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("content_type of an event with a payload must be null"),
				 errhint(
					 "A payload is JSON. Set body and content_type for anything else.")));
		outbox_check_payload(e->payload, fresh);
	}
	else if (e->body)
	{
		if (e->content_type == NULL)
			ereport(
				ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("content_type of an event with a body must not be null"),
				 errhint(
					 "Pass the media type of the bytes, like 'application/octet-stream'.")));
		check_length("content_type", e->content_type, OUTBOX_MAX_TYPE);
		check_line("content_type", e->content_type);
		check_not_blank(e->content_type);
		if (fresh)
			check_size("body", "", VARSIZE_ANY_EXHDR(e->body));
	}
	else if (fresh || e->tenant == NULL || e->key || e->headers || e->content_type)
		ereport(
			ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("payload of an event must not be null"),
			 errhint(
				 "Pass JSON, or bytes and their content type. The JSON null is 'null'::jsonb.")));
}

/* check_topic(topic text): for the catalogue of event types. */
OUTBOX_FUNCTION(outbox_check_topic_1_0, 1)
{
	check_topic(PG_GETARG_TEXT_PP(0), false);
	PG_RETURN_VOID();
}

/* check_tenant(tenant text, required bool): for the tenant of an endpoint. */
OUTBOX_FUNCTION(outbox_check_tenant_1_0, 2)
{
	if (!PG_ARGISNULL(0))
	{
		check_tenant(PG_GETARG_TEXT_PP(0));
		PG_RETURN_DATUM(PG_GETARG_DATUM(0));
	}
	if (!PG_ARGISNULL(1) && PG_GETARG_BOOL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 err_generic_string(PG_DIAG_COLUMN_NAME, "tenant"),
				 errmsg("tenant must not be null"),
				 errhint("Pass the tenant that the customer is.")));
	PG_RETURN_NULL();
}
