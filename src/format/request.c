/*
 * request.c
 *	  Turns an event into the bytes and header lines of one attempt, as doc/wire.md
 *	  says for each format.
 *
 * This runs for every delivery, and must cost no more than one or two microseconds.
 * So numbers are written in place, and the body is made once per event and format.
 * Nothing is allocated for an event without headers of its own.
 *
 * The checks of an event ran when it was written.  A row can evade them, for example
 * in a restore under other settings, or in a table that its owner has changed.  But no
 * control character may be sent, whatever the table holds.  So the checks run again:
 * for columns when the body is made, for headers when they are written.
 */
#include "base/outbox.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/encoding.h"
#include "base/json_members.h"
#include "base/names.h"
#include "format/cloudevents.h"
#include "format/url_query.h"
#include "format/request.h"

#define LITERAL(s) (s), sizeof(s) - 1

/*
 * Size of an encoded key or type, if each byte becomes a character of
 * MAX_CONVERSION_GROWTH bytes, each "%XX".
 */
#define MAX_ENCODED (Max(OUTBOX_MAX_KEY, OUTBOX_MAX_TYPE) * MAX_CONVERSION_GROWTH * 3)

/* ---------------------------------------------------------------------
 * Rows that evaded the checks
 * ---------------------------------------------------------------------
 */

static bool
line_valid(char *s, size_t max)
{
	size_t len = strlen(s);

	return len > 0 && len <= max && outbox_text_problem(s, len) == NULL;
}

/* 'total' is the size of all headers so far. */
static bool
header_valid(const OutboxMembers *m, size_t *total)
{
	const char *name = m->name.val.string.val;
	char	   *value = m->value.val.string.val;

	if (m->value.type != jbvString)
		return false;
	*total += m->name.val.string.len + m->value.val.string.len;

	/* Emitters may not set what outbox.send_test() sets. */
	return *total <= OUTBOX_MAX_HEADERS &&
		(outbox_header_name_problem(name, m->name.val.string.len, true) == NULL ||
		 outbox_header_name_is(name, m->name.val.string.len, "outbox-test")) &&
		outbox_text_problem(value, m->value.val.string.len) == NULL;
}

static bool
number_valid(Jsonb *headers)
{
	return JB_ROOT_IS_OBJECT(headers) &&
		JB_ROOT_COUNT(headers) <= OUTBOX_MAX_EVENT_HEADERS;
}

static bool
headers_valid(Jsonb *headers)
{
	OutboxMembers m = outbox_members(headers);
	size_t		  total = 0;
	bool		  valid = number_valid(headers);

	/* Reads to the end even after a problem, because that frees the iterator. */
	while (outbox_members_next(&m))
		valid = valid && header_valid(&m, &total);
	return valid;
}

/* The problem with the columns of an event, except its headers; NULL: none. */
static const char *
event_problem(const OutboxEvent *event)
{
	if (outbox_topic_problem(event->topic, strlen(event->topic)) != NULL)
		return "invalid topic";
	if (event->type && !line_valid(event->type, OUTBOX_MAX_TYPE))
		return "invalid type";
	if (event->key && (event->key[0] == '\0' || strlen(event->key) > OUTBOX_MAX_KEY))
		return "invalid key";
	if (event->tenant && !line_valid(event->tenant, OUTBOX_MAX_TENANT))
		return "invalid tenant";
	if (event->content_type && !line_valid(event->content_type, OUTBOX_MAX_TYPE))
		return "invalid content type";
	return NULL;
}

const char *
outbox_request_problem(const OutboxEvent *event)
{
	const char *problem = event_problem(event);

	if (problem == NULL && event->headers && !headers_valid(event->headers))
		problem = "invalid header";
	return problem;
}

/* ---------------------------------------------------------------------
 * Bodies
 * ---------------------------------------------------------------------
 */

bool
outbox_data_prepare(OutboxData *d, const OutboxEvent *event)
{
	d->content_type = event->content_type;
	d->content_type_len = 0;
	d->data = event->payload;
	d->data_len = event->payload_len;
	if (d->content_type)
	{
		d->content_type_len = strlen(d->content_type);
		d->content_type = outbox_to_utf8(d->content_type, &d->content_type_len);
		d->size = 6 * d->content_type_len + (d->data_len + 2) / 3 * 4 + 50;
		return d->content_type != NULL;
	}
	d->data = outbox_to_utf8(d->data, &d->data_len);
	d->size = d->data_len + 50;
	return d->data != NULL;
}

char *
outbox_data_put(char *p, const OutboxData *d)
{
	if (d->content_type == NULL)
	{
		p = outbox_put_literal(p, "\"data\":");
		return outbox_put(p, d->data, d->data_len);
	}
	p = outbox_put_literal(p, "\"content_type\":");
	p = outbox_put_json_string(p, d->content_type, d->content_type_len);
	p = outbox_put_literal(p, ",\"data_base64\":\"");
	p += outbox_b64_encode((uint8 *) d->data, (int) d->data_len, p,
						   (int) ((d->data_len + 2) / 3 * 4));
	*p++ = '"';
	return p;
}

/* The envelope of Standard Webhooks: {"type", "timestamp", "data"}. */
static bool
render_standard(OutboxEvent *event, size_t *len, char **body)
{
	char	  *type = event->type ? event->type : event->topic;
	size_t	   type_len = strlen(type);
	OutboxData data;
	char	  *p;

	if ((type = outbox_to_utf8(type, &type_len)) == NULL ||
		!outbox_data_prepare(&data, event))
		return false;

	p = *body = MemoryContextAllocHuge(event->page->cxt,
									   6 * type_len + OUTBOX_TIMESTAMP_SIZE + 50 +
										   data.size);
	p = outbox_put_literal(p, "{\"type\":");
	p = outbox_put_json_string(p, type, type_len);
	p = outbox_put_literal(p, ",\"timestamp\":\"");
	p = outbox_put_timestamp(p, event->created_at);
	p = outbox_put_literal(p, "\",");
	p = outbox_data_put(p, &data);
	*p++ = '}';
	*len = p - *body;
	if (data.data != event->payload)
		pfree(data.data);
	return true;
}

const char *
outbox_request_body(OutboxEvent *event, OutboxFormat format, size_t *len)
{
	format = OUTBOX_BODY_OF(format);
	if (event->body[format].data == NULL)
	{
		MemoryContext old;
		char		 *body = NULL;
		size_t		  body_len = event->payload_len;
		bool		  rendered = true;

		*len = 0;
		if (event_problem(event) != NULL)
			return NULL;
		if (format == OUTBOX_FORMAT_CLOUDEVENTS && event->headers &&
			!headers_valid(event->headers))
			return NULL;

		old = MemoryContextSwitchTo(event->page->cxt);
		switch (format)
		{
			case OUTBOX_FORMAT_STANDARD:
				rendered = render_standard(event, &body_len, &body);
				break;
			case OUTBOX_FORMAT_RAW:
				body = event->payload;
				if (event->content_type == NULL)
					body = outbox_to_utf8(body, &body_len);
				rendered = body != NULL;
				break;
			case OUTBOX_FORMAT_CLOUDEVENTS:
				rendered = outbox_cloudevents_body(event, &body_len, &body);
				break;
			case OUTBOX_FORMAT_CLOUDEVENTS_BINARY:
			case OUTBOX_FORMATS:
				rendered = false;
				break;
		}
		MemoryContextSwitchTo(old);

		if (!rendered)
			return NULL;
		event->body[format].data = body;
		event->body[format].len = body_len;
		outbox_page_account(event->page);
	}
	*len = event->body[format].len;
	return event->body[format].data;
}

/* ---------------------------------------------------------------------
 * Header lines
 * ---------------------------------------------------------------------
 */

/*
 * Adds a string of the event as a header, percent-encoded by 'encode' unless that is NULL.
 * Returns false if it has no UTF-8.
 */
static bool
add_text(OutboxHeaders *out, const char *name, char *value, size_t len,
		 size_t (*encode)(const char *, size_t, char *), bool *added)
{
	char  encoded[MAX_ENCODED];
	char *utf8 = outbox_to_utf8(value, &len);

	if (utf8 == NULL)
		return false;
	*added &= encode ?
		outbox_headers_add(out, name, encoded, encode(utf8, len, encoded)) :
		outbox_headers_add(out, name, utf8, len);
	if (utf8 != value)
		pfree(utf8);
	return true;
}

/*
 * True if the profile sends a header of this name, or wants it left out.  No other
 * header has a name of the standard profile.
 */
static bool
is_of_profile(const OutboxRequestConfig *settings, const char *name, size_t len)
{
	const OutboxProfile *profile = settings->profile;

	return profile != &outbox_profile_standard &&
		(outbox_profile_has_header(profile, name, len) ||
		 ((profile->sends & OUTBOX_SENDS_TEST) == 0 &&
		  outbox_header_name_is(name, len, "outbox-test")));
}

/*
 * Adds the event's own headers.  Trace context is added last, because a tracestate
 * means nothing without a valid traceparent.  It is passed on unchanged: the span that
 * it names is the emitter's, which is exported, and the receiver's span gets a parent.
 */
static bool
add_event_headers(OutboxHeaders *out, Jsonb *headers, const OutboxRequestConfig *settings,
				  bool *added)
{
	OutboxMembers m = outbox_members(headers);
	char		  copy[OUTBOX_MAX_HEADERS + 1];
	bool		  valid = number_valid(headers);
	size_t		  total = 0;
	const char	 *parent = NULL;
	const char	 *state = NULL;
	size_t		  parent_len = 0;
	size_t		  state_len = 0;

	/* Reads to the end even after a problem, because that frees the iterator. */
	while (outbox_members_next(&m))
	{
		const char *name = m.name.val.string.val;
		int			name_len = m.name.val.string.len;
		char	   *s = m.value.val.string.val;
		int			len = m.value.val.string.len;

		valid = valid && header_valid(&m, &total);
		if (!valid ||
			outbox_header_name_among(name, name_len, settings->header_names,
									 settings->nheaders) ||
			is_of_profile(settings, name, name_len))
			continue;
		if (outbox_header_name_is(name, name_len, "traceparent"))
		{
			if (outbox_traceparent_valid(s, len))
			{
				parent = s;
				parent_len = len;
			}
		}
		else if (outbox_header_name_is(name, name_len, "tracestate"))
		{
			if (outbox_tracestate_valid(s, len))
			{
				state = s;
				state_len = len;
			}
		}
		else
		{
			memcpy(copy, name, name_len);
			copy[name_len] = '\0';
			valid = add_text(out, copy, s, len, NULL, added);
		}
	}

	if (valid && parent != NULL)
	{
		*added &= outbox_headers_add(out, "traceparent", parent, parent_len);
		if (state != NULL)
			*added &= outbox_headers_add(out, "tracestate", state, state_len);
	}
	return valid;
}

static bool
add_number(OutboxHeaders *out, const char *name, int64 number)
{
	char text[MAXINT8LEN + 1];

	return outbox_headers_add(out, name, text, pg_lltoa(number, text));
}

static bool
add_content_type(OutboxHeaders *out, const char *name, const OutboxEvent *event,
				 OutboxFormat format, bool *added)
{
	/* In lower case, because the JavaScript SDK of CloudEvents knows no other. */
	if (format == OUTBOX_FORMAT_CLOUDEVENTS)
		*added &= outbox_headers_add(out, name,
									 LITERAL(
										 "application/cloudevents+json; charset=utf-8"));
	else if (format == OUTBOX_FORMAT_STANDARD || event->content_type == NULL)
		*added &= outbox_headers_add(out, name, LITERAL("application/json"));
	else
		return add_text(out, name, event->content_type, strlen(event->content_type), NULL,
						added);
	return true;
}

static void
add_agent(OutboxHeaders *out, const OutboxProfile *profile, bool *added)
{
	char agent[256];

	if (profile->agent == NULL)
		*added &= outbox_headers_add(out, "User-Agent",
									 LITERAL("outbox/" OUTBOX_VERSION));
	else
		*added &= outbox_headers_add(out, "User-Agent", agent,
									 snprintf(agent, sizeof(agent),
											  "outbox/" OUTBOX_VERSION " %s",
											  profile->agent));
}

/* Adds the headers that name the sender and the id, and the signatures. */
static void
add_identity(OutboxHeaders *out, const char *id, const OutboxRequestConfig *settings,
			 int64 now, const char *body, size_t body_len, bool *added)
{
	const OutboxProfile *profile = settings->profile;
	size_t				 id_len = strlen(id);
	char				 quoted[OUTBOX_ID_SIZE + 2];
	char				 signatures[OUTBOX_SIGNATURES_MAX];

	add_agent(out, profile, added);
	if (profile->id_header)
		*added &= outbox_headers_add(out, profile->id_header, id, id_len);
	if (profile->timestamp_header)
		*added &= add_number(out, profile->timestamp_header, now);
	if (profile->signature_header)
		*added &= outbox_headers_add(out, profile->signature_header, signatures,
									 outbox_profile_sign(profile, settings->keys,
														 settings->nkeys, id, id_len, now,
														 body, body_len, signatures));

	if ((profile->sends & OUTBOX_SENDS_IDEMPOTENCY_KEY) == 0)
		return;
	quoted[0] = '"';
	memcpy(quoted + 1, id, id_len);
	quoted[id_len + 1] = '"';
	*added &= outbox_headers_add(out, "Idempotency-Key", quoted, id_len + 2);
}

static bool
add_endpoint_headers(OutboxHeaders *out, const OutboxRequestConfig *settings, bool *added)
{
	if (settings->nheaders > OUTBOX_MAX_ENDPOINT_HEADERS)
		return false;
	for (int i = 0; i < settings->nheaders; i++)
	{
		char *name = settings->header_names[i];
		char *value = settings->header_values[i];

		if (is_of_profile(settings, name, strlen(name)))
			continue;
		if (outbox_header_name_problem(name, strlen(name), false) != NULL ||
			outbox_text_problem(value, strlen(value)) != NULL ||
			!add_text(out, name, value, strlen(value), NULL, added))
			return false;
	}
	return true;
}

/* Adds the headers of the event and of the endpoint.  Returns the problem with one of them. */
static const char *
add_event(OutboxHeaders *out, OutboxEvent *event, const OutboxRequestConfig *settings,
		  int sends, bool encoded, int attempt, OutboxRedelivery redelivery, bool *added)
{
	char *type = event->type ? event->type : event->topic;

	if (sends & OUTBOX_SENDS_TOPIC)
		*added &= outbox_headers_add(out, "outbox-topic", event->topic,
									 strlen(event->topic));
	if ((sends & OUTBOX_SENDS_TYPE) &&
		!add_text(out, "outbox-type", type, strlen(type),
				  encoded ? outbox_percent_encode_header : NULL, added))
		return "invalid type";
	if (event->key && (sends & OUTBOX_SENDS_KEY) &&
		!add_text(out, "outbox-key", event->key, strlen(event->key),
				  outbox_percent_encode, added))
		return "invalid key";
	if (event->tenant && (sends & OUTBOX_SENDS_TENANT) &&
		!add_text(out, "outbox-tenant", event->tenant, strlen(event->tenant),
				  encoded ? outbox_percent_encode : NULL, added))
		return "invalid tenant";

	/* It counts the events of all tenants, and theirs are all that their endpoints get. */
	if (event->tenant == NULL && (sends & OUTBOX_SENDS_SEQUENCE))
		*added &= add_number(out, "outbox-sequence", event->seq);
	if (sends & OUTBOX_SENDS_ATTEMPT)
		*added &= add_number(out, "outbox-attempt", attempt);
	if (redelivery == OUTBOX_REDELIVERY_RETRY && (sends & OUTBOX_SENDS_REDELIVERY))
		*added &= outbox_headers_add(out, "outbox-redelivery", LITERAL("retry"));
	else if (redelivery != OUTBOX_FIRST_DELIVERY && (sends & OUTBOX_SENDS_REDELIVERY))
		*added &= outbox_headers_add(out, "outbox-redelivery", LITERAL("replay"));
	if (!add_endpoint_headers(out, settings, added))
		return "invalid endpoint header";
	if (event->headers != NULL &&
		!add_event_headers(out, event->headers, settings, added))
		return "invalid header";
	return NULL;
}

static void
check_added(bool added)
{
	if (!added)
		ereport(
			ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory for the headers of a request"),
			 errhint(
				 "Lower outbox.worker_max_in_flight, or give the machine more memory.")));
}

static const char *
why_no_body(const OutboxEvent *event)
{
	const char *problem = outbox_request_problem(event);

	return problem ? problem : OUTBOX_NO_UTF8;
}

const char *
outbox_request_headers(OutboxHeaders *out, OutboxEvent *event,
					   const OutboxRequestConfig *settings, int attempt,
					   OutboxRedelivery redelivery, int64 now, const char *body,
					   size_t body_len)
{
	const OutboxProfile *profile = settings->profile;
	char				*type = event->type ? event->type : event->topic;
	const char			*problem;
	bool				 added = true;

	if (body == NULL)
		return why_no_body(event);
	if (!add_content_type(out, "Content-Type", event, settings->format, &added))
		return "invalid content type";
	add_identity(out, event->id_text, settings, now, body, body_len, &added);
	if (profile->type_header &&
		!add_text(out, profile->type_header, type, strlen(type),
				  outbox_percent_encode_header, &added))
		return "invalid type";
	problem = add_event(out, event, settings, profile->sends, true, attempt, redelivery,
						&added);
	if (problem)
		return problem;

	/* After the headers from which they are made have been checked. */
	if ((settings->format == OUTBOX_FORMAT_CLOUDEVENTS_BINARY &&
		 !outbox_cloudevents_headers(out, event, "ce-", true, &added)) ||
		(profile->query &&
		 !outbox_url_query_add(out, profile, event->id_text, event, &added)))
		return OUTBOX_NO_UTF8;

	check_added(added);
	return NULL;
}

const char *
outbox_request_message_headers(OutboxHeaders *out, OutboxEvent *event,
							   const OutboxRequestConfig *settings, int attempt,
							   OutboxRedelivery redelivery, const char *prefix,
							   const char *body)
{
	const char *problem;
	bool		added = true;

	if (body == NULL)
		return why_no_body(event);
	if (!add_content_type(out, "content-type", event, settings->format, &added))
		return "invalid content type";
	added &= outbox_headers_add(out, "outbox-id", event->id_text, OUTBOX_ID_SIZE - 1);
	problem = add_event(out, event, settings, OUTBOX_SENDS_ALL & ~OUTBOX_SENDS_KEY, false,
						attempt, redelivery, &added);
	if (problem)
		return problem;
	if (settings->format == OUTBOX_FORMAT_CLOUDEVENTS_BINARY && prefix &&
		!outbox_cloudevents_headers(out, event, prefix, false, &added))
		return OUTBOX_NO_UTF8;
	check_added(added);
	return NULL;
}

const char *
outbox_request_batch_headers(OutboxHeaders *out, const char *id,
							 const OutboxRequestConfig *settings, int attempt, int64 now,
							 const char *body, size_t body_len)
{
	bool added = true;

	/* In lower case, see add_content_type(). */
	if (settings->format == OUTBOX_FORMAT_CLOUDEVENTS)
		added &= outbox_headers_add(
			out, "Content-Type",
			LITERAL("application/cloudevents-batch+json; charset=utf-8"));
	else
		added &= outbox_headers_add(out, "Content-Type", LITERAL("application/json"));
	add_identity(out, id, settings, now, body, body_len, &added);
	if (settings->profile->sends & OUTBOX_SENDS_ATTEMPT)
		added &= add_number(out, "outbox-attempt", attempt);
	if (!add_endpoint_headers(out, settings, &added))
		return "invalid endpoint header";
	if (settings->profile->query)
		(void) outbox_url_query_add(out, settings->profile, id, NULL, &added);
	check_added(added);
	return NULL;
}

const char *
outbox_request_handshake_headers(OutboxHeaders *out, const OutboxRequestConfig *settings,
								 const char *origin, int64 rate)
{
	bool added = true;

	add_agent(out, settings->profile, &added);
	added &= outbox_headers_add(out, "WebHook-Request-Origin", origin, strlen(origin));
	if (rate > 0)
		added &= add_number(out, "WebHook-Request-Rate", rate);
	if (!add_endpoint_headers(out, settings, &added))
		return "invalid endpoint header";
	if (settings->profile->query)
		(void) outbox_url_query_add(out, settings->profile, NULL, NULL, &added);
	check_added(added);
	return NULL;
}
