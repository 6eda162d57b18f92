/*
 * request.c
 *	  Turns an event into the bytes and header lines of one attempt, as the
 *	  formats of doc/wire say.
 *
 * This runs for every delivery and has to cost less than a microsecond or two:
 * numbers are written in place, the body is made once per event and format, and
 * nothing is allocated for an event without headers of its own.
 *
 * What is sent is UTF-8.  In a database of another encoding strings are
 * converted here, in the worker, outside a transaction: so the worker's
 * client_encoding has to be UTF8, set inside a transaction, which is when
 * PostgreSQL looks up and keeps the conversion function.
 *
 * The checks of an event ran when it was written.  Rows can come past them (a
 * restore under other settings, a table changed by its owner), and no control
 * character may reach the wire whatever the table holds: it is looked for again.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "request.h"
#include "topic.h"

#define LITERAL(s) (s), sizeof(s) - 1

/* Growth of a key when each byte becomes a character of four, each "%XX". */
#define MAX_ENCODED_KEY (OUTBOX_MAX_KEY * MAX_CONVERSION_GROWTH * 3)

#define TIMESTAMP_SIZE 64

#define TRACEPARENT_LEN 55

/* ---------------------------------------------------------------------
 * Text
 * ---------------------------------------------------------------------
 */

/*
 * The UTF-8 of a string of the database: 's' itself, or a palloc'd copy.  NULL:
 * it has none; that is a reason for a dead letter, not an error.
 */
static char *
to_utf8(char *s, size_t *len)
{
	MemoryContext cxt = CurrentMemoryContext;
	char	   *volatile utf8 = NULL;

	if (GetDatabaseEncoding() == PG_UTF8)
		return s;

	PG_TRY();
	{
		utf8 = pg_server_to_any(s, (int) *len, PG_UTF8);
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		if (code != ERRCODE_UNTRANSLATABLE_CHARACTER &&
			code != ERRCODE_CHARACTER_NOT_IN_REPERTOIRE)
			PG_RE_THROW();
		MemoryContextSwitchTo(cxt);
		FlushErrorState();
		utf8 = NULL;
	}
	PG_END_TRY();

	if (utf8 != NULL && utf8 != s)
		*len = strlen(utf8);
	return utf8;
}

static char *
put(char *p, const char *s, size_t len)
{
	memcpy(p, s, len);
	return p + len;
}

/* A JSON string; almost none has anything to escape. At most 6 * len + 2 bytes. */
static char *
put_json_string(char *p, const char *s, size_t len)
{
	StringInfoData escaped;
	bool		plain = true;

	for (size_t i = 0; i < len; i++)
		plain &= (unsigned char) s[i] >= 0x20 && s[i] != '"' && s[i] != '\\';
	if (plain)
	{
		*p++ = '"';
		p = put(p, s, len);
		*p++ = '"';
		return p;
	}

	initStringInfo(&escaped);
	escape_json(&escaped, s);
	p = put(p, escaped.data, escaped.len);
	pfree(escaped.data);
	return p;
}

/* ISO 8601 in UTC, with microseconds. */
static char *
put_timestamp(char *p, TimestampTz t)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (TIMESTAMP_NOT_FINITE(t) || timestamp2tm(t, NULL, &tm, &fsec, NULL, NULL) != 0)
	{
		memset(&tm, 0, sizeof(tm));
		fsec = 0;
	}
	p = pg_ultostr_zeropad(p, (uint32) Max(tm.tm_year, 0), 4);
	*p++ = '-';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_mon, 2);
	*p++ = '-';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_mday, 2);
	*p++ = 'T';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_hour, 2);
	*p++ = ':';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_min, 2);
	*p++ = ':';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_sec, 2);
	*p++ = '.';
	p = pg_ultostr_zeropad(p, (uint32) fsec, 6);
	*p++ = 'Z';
	return p;
}

/* All but the unreserved characters of RFC 3986 as "%XX". */
static size_t
percent_encode(const char *s, size_t len, char *out)
{
	static const char hex[] = "0123456789ABCDEF";
	char	   *p = out;

	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) s[i];

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			(c >= '0' && c <= '9') ||
			c == '-' || c == '.' || c == '_' || c == '~')
			*p++ = (char) c;
		else
		{
			*p++ = '%';
			*p++ = hex[c >> 4];
			*p++ = hex[c & 15];
		}
	}
	return p - out;
}

/* ---------------------------------------------------------------------
 * Bodies
 * ---------------------------------------------------------------------
 */

/*
 * Standard Webhooks' envelope: {"type", "timestamp", "data"}.  Bytes are not
 * looked into, whatever their content type says: they go in as base64.
 */
static bool
render_standard(OutboxEvent *event, size_t *len, char **body)
{
	char	   *type = event->type ? event->type : event->topic;
	size_t		type_len = strlen(type);
	char	   *content_type = event->content_type;
	size_t		content_type_len = content_type ? strlen(content_type) : 0;
	char	   *data = event->payload;
	size_t		data_len = event->payload_len;
	size_t		size;
	char	   *p;

	if ((type = to_utf8(type, &type_len)) == NULL)
		return false;
	if (content_type)
	{
		if ((content_type = to_utf8(content_type, &content_type_len)) == NULL)
			return false;
		size = (data_len + 2) / 3 * 4;
	}
	else
	{
		if ((data = to_utf8(data, &data_len)) == NULL)
			return false;
		size = data_len;
	}

	size += 6 * (type_len + content_type_len) + TIMESTAMP_SIZE + 100;
	p = *body = MemoryContextAllocHuge(event->page->cxt, size);

	p = put(p, LITERAL("{\"type\":"));
	p = put_json_string(p, type, type_len);
	p = put(p, LITERAL(",\"timestamp\":\""));
	p = put_timestamp(p, event->created_at);
	if (content_type)
	{
		p = put(p, LITERAL("\",\"content_type\":"));
		p = put_json_string(p, content_type, content_type_len);
		p = put(p, LITERAL(",\"data_base64\":\""));
		p += outbox_b64_encode((uint8 *) data, (int) data_len, p,
							   (int) (size - (p - *body)));
		*p++ = '"';
	}
	else
	{
		p = put(p, LITERAL("\",\"data\":"));
		p = put(p, data, data_len);
	}
	*p++ = '}';
	*len = p - *body;
	return true;
}

const char *
outbox_request_body(OutboxEvent *event, OutboxFormat format, size_t *len)
{
	if (event->body[format].data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(event->page->cxt);
		char	   *body = NULL;
		size_t		body_len = event->payload_len;
		bool		rendered = true;

		switch (format)
		{
			case OUTBOX_FORMAT_STANDARD:
				rendered = render_standard(event, &body_len, &body);
				break;
			case OUTBOX_FORMAT_RAW:
				body = event->payload;
				if (event->content_type == NULL)
					body = to_utf8(body, &body_len);
				rendered = body != NULL;
				break;
			case OUTBOX_FORMATS:
				rendered = false;
				break;
		}
		MemoryContextSwitchTo(old);

		if (!rendered)
		{
			*len = 0;
			return NULL;
		}
		event->body[format].data = body;
		event->body[format].len = body_len;
	}
	*len = event->body[format].len;
	return event->body[format].data;
}

/* ---------------------------------------------------------------------
 * Trace context (W3C Trace Context, level 1 and 2)
 * ---------------------------------------------------------------------
 */

static bool
is_lower_hex(const char *s, int len)
{
	for (int i = 0; i < len; i++)
		if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
			return false;
	return true;
}

static bool
is_all_zero(const char *s, int len)
{
	for (int i = 0; i < len; i++)
		if (s[i] != '0')
			return false;
	return true;
}

/* version "-" trace-id "-" parent-id "-" flags; later versions may go on. */
static bool
traceparent_valid(const char *s, size_t len)
{
	if (len < TRACEPARENT_LEN ||
		s[2] != '-' || s[35] != '-' || s[52] != '-' ||
		!is_lower_hex(s, 2) || !is_lower_hex(s + 3, 32) ||
		!is_lower_hex(s + 36, 16) || !is_lower_hex(s + 53, 2) ||
		is_all_zero(s + 3, 32) || is_all_zero(s + 36, 16) ||
		memcmp(s, "ff", 2) == 0)
		return false;
	if (len > TRACEPARENT_LEN)
		return memcmp(s, "00", 2) != 0 && s[TRACEPARENT_LEN] == '-';
	return true;
}

/* Printable ASCII, and members that look like key=value. */
static bool
tracestate_valid(const char *s, size_t len)
{
	bool		equals = false;
	bool		content = false;
	bool		any = false;

	for (size_t i = 0; i <= len; i++)
	{
		if (i == len || s[i] == ',')
		{
			if (content && !equals)
				return false;
			any |= content;
			equals = content = false;
		}
		else if (s[i] < 0x20 || s[i] > 0x7e)
			return false;
		else if (s[i] == '=' && content)
			equals = true;
		else if (s[i] != ' ')
			content = true;
	}
	return any;
}

/*
 * The same trace with a parent id of this attempt's own, as version 00 and with
 * the two flags that are defined.
 */
static void
make_traceparent(const char *from, char *out)
{
	static const char hex[] = "0123456789abcdef";
	static uint64 seed = 0;
	static uint32 counter = 0;
	char		c = from[54];
	int			flags = c <= '9' ? c - '0' : c - 'a' + 10;
	uint64		parent;

	while (seed == 0)
		if (!pg_strong_random(&seed, sizeof(seed)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values"),
					 errhint("The operating system's source of random numbers failed.")));
	do
		parent = hash_bytes_uint32_extended(++counter, seed);
	while (parent == 0);

	memcpy(out, "00-", 3);
	memcpy(out + 3, from + 3, 33);
	for (int i = 0; i < 16; i++)
		out[36 + i] = hex[(parent >> (60 - 4 * i)) & 15];
	out[52] = '-';
	out[53] = '0';
	out[54] = hex[flags & 3];
}

/* ---------------------------------------------------------------------
 * Header lines
 * ---------------------------------------------------------------------
 */

/* A string of the event as a header; false when it cannot be one. */
static bool
add_text(OutboxHeaders *out, const char *name, char *value, size_t len, bool *added)
{
	char	   *utf8;

	if (outbox_header_value_problem(value, len) != NULL)
		return false;
	utf8 = to_utf8(value, &len);
	if (utf8 == NULL)
		return false;
	*added &= outbox_headers_add(out, name, utf8, len);
	if (utf8 != value)
		pfree(utf8);
	return true;
}

static bool
add_key(OutboxHeaders *out, char *key, bool *added)
{
	char		encoded[MAX_ENCODED_KEY];
	size_t		len = strlen(key);
	char	   *utf8;

	if (len > OUTBOX_MAX_KEY)
		return false;
	utf8 = to_utf8(key, &len);
	if (utf8 == NULL)
		return false;
	*added &= outbox_headers_add(out, "outbox-key", encoded,
								 percent_encode(utf8, len, encoded));
	if (utf8 != key)
		pfree(utf8);
	return true;
}

static bool
name_equals(const char *a, size_t a_len, const char *b)
{
	return strlen(b) == a_len && pg_strncasecmp(a, b, a_len) == 0;
}

/*
 * The event's own headers.  Trace context is kept back until all is seen: a
 * tracestate means nothing without a valid traceparent.
 */
static const char *
add_event_headers(OutboxHeaders *out, Jsonb *headers,
				  const OutboxRequestSettings *settings, bool *added)
{
	JsonbIterator *it = JsonbIteratorInit(&headers->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	char		name[OUTBOX_MAX_HEADERS + 1];
	bool		skip = false;
	bool		is_parent = false;
	bool		is_state = false;
	const char *problem = NULL;
	const char *parent = NULL;
	const char *state = NULL;
	size_t		state_len = 0;

	if (!JB_ROOT_IS_OBJECT(headers))
		problem = "invalid header";

	/* To the end even after a problem: that is what frees the iterator. */
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		const char *s = v.val.string.val;
		int			len = v.val.string.len;

		if (problem != NULL)
			continue;
		if (token == WJB_KEY)
		{
			if (len > OUTBOX_MAX_HEADERS ||
				outbox_header_name_problem(s, len, true) != NULL)
			{
				problem = "invalid header";
				continue;
			}
			memcpy(name, s, len);
			name[len] = '\0';
			is_parent = name_equals(s, len, "traceparent");
			is_state = name_equals(s, len, "tracestate");
			skip = false;
			for (int i = 0; i < settings->nheaders; i++)
				skip |= name_equals(s, len, settings->header_names[i]);
		}
		else if (token == WJB_VALUE)
		{
			if (v.type != jbvString)
				problem = "invalid header";
			else if (skip)
				continue;
			else if (is_parent)
			{
				if (traceparent_valid(s, len))
					parent = s;
			}
			else if (is_state)
			{
				if (tracestate_valid(s, len))
				{
					state = s;
					state_len = len;
				}
			}
			else if (!add_text(out, name, v.val.string.val, len, added))
				problem = "invalid header";
		}
	}

	if (problem == NULL && parent != NULL)
	{
		char		traceparent[TRACEPARENT_LEN];

		make_traceparent(parent, traceparent);
		*added &= outbox_headers_add(out, "traceparent", traceparent, TRACEPARENT_LEN);
		if (state != NULL)
			*added &= outbox_headers_add(out, "tracestate", state, state_len);
	}
	return problem;
}

static bool
add_number(OutboxHeaders *out, const char *name, int64 number)
{
	char		text[MAXINT8LEN + 1];

	return outbox_headers_add(out, name, text, pg_lltoa(number, text));
}

const char *
outbox_request_headers(OutboxHeaders *out, OutboxEvent *event,
					   const OutboxRequestSettings *settings, int attempt,
					   OutboxRedelivery redelivery, int64 now,
					   const char *body, size_t body_len)
{
	char	   *type = event->type ? event->type : event->topic;
	size_t		id_len = strlen(event->id_text);
	char		quoted[sizeof(event->id_text) + 2];
	char		signatures[2 * OUTBOX_SIGNATURE_LEN + 1];
	size_t		len = 0;
	bool		added = true;

	if (body == NULL)
		return "not UTF-8";

	if (settings->format == OUTBOX_FORMAT_RAW && event->content_type != NULL)
	{
		if (!add_text(out, "Content-Type", event->content_type,
					  strlen(event->content_type), &added))
			return "invalid content type";
	}
	else
		added &= outbox_headers_add(out, "Content-Type", LITERAL("application/json"));
	added &= outbox_headers_add(out, "User-Agent", LITERAL("outbox/" OUTBOX_VERSION));

	added &= outbox_headers_add(out, "webhook-id", event->id_text, id_len);
	added &= add_number(out, "webhook-timestamp", now);
	for (int i = 0; i < settings->nkeys; i++)
	{
		if (i > 0)
			signatures[len++] = ' ';
		outbox_sign(&settings->keys[i], event->id_text, id_len, now,
					body, body_len, signatures + len);
		len += OUTBOX_SIGNATURE_LEN;
	}
	added &= outbox_headers_add(out, "webhook-signature", signatures, len);

	quoted[0] = '"';
	memcpy(quoted + 1, event->id_text, id_len);
	quoted[id_len + 1] = '"';
	added &= outbox_headers_add(out, "Idempotency-Key", quoted, id_len + 2);

	if (!add_text(out, "outbox-topic", event->topic, strlen(event->topic), &added))
		return "invalid topic";
	if (!add_text(out, "outbox-type", type, strlen(type), &added))
		return "invalid type";
	if (event->key && !add_key(out, event->key, &added))
		return "invalid key";
	added &= add_number(out, "outbox-sequence", event->seq);
	added &= add_number(out, "outbox-attempt", attempt);
	switch (redelivery)
	{
		case OUTBOX_FIRST_DELIVERY:
			break;
		case OUTBOX_REDELIVERY_RETRY:
			added &= outbox_headers_add(out, "outbox-redelivery", LITERAL("retry"));
			break;
		case OUTBOX_REDELIVERY_REPLAY:
			added &= outbox_headers_add(out, "outbox-redelivery", LITERAL("replay"));
			break;
	}

	for (int i = 0; i < settings->nheaders; i++)
	{
		if (outbox_header_name_problem(settings->header_names[i],
									   strlen(settings->header_names[i]), false) != NULL ||
			!add_text(out, settings->header_names[i], settings->header_values[i],
					  strlen(settings->header_values[i]), &added))
			return "invalid endpoint header";
	}
	if (event->headers != NULL)
	{
		const char *problem = add_event_headers(out, event->headers, settings, &added);

		if (problem != NULL)
			return problem;
	}

	if (!added)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory for the headers of a request"),
				 errhint("Lower outbox.worker_max_in_flight, or give the machine more memory.")));
	return NULL;
}
