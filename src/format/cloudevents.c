/*
 * cloudevents.c
 *	  Writes an event as a CloudEvent: one JSON document in structured mode, header
 *	  lines beside the payload in binary mode.
 *
 * CloudEvents 1.0.2: core, JSON format, HTTP protocol binding, and the extensions
 * partitioning and distributed tracing.  The tracing extension carries the
 * trace in which the event began, as the emitter passed it, so a retry has the same
 * bytes.  The parent id of each attempt is in the HTTP header of that name.
 */
#include "base/outbox.h"

#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "base/encoding.h"
#include "base/json_members.h"
#include "base/names.h"
#include "base/settings.h"
#include "format/cloudevents.h"

#define SPEC_VERSION "1.0"

/* The specification asks for names no longer than this. */
#define MAX_NAME 20
#define MAX_PREFIX 16 /* that names in binary mode begin with */

/* An attribute: one of outbox itself, or one of the event's headers. */
typedef struct Attribute
{
	char   name[MAX_NAME + 1];
	char  *value;
	size_t len;
	bool   ascii; /* needs no conversion */
} Attribute;

static char *default_source;

void
outbox_cloudevents_init(void)
{
	static const char prefix[] = "/outbox/";
	char			 *name;
	char			 *utf8;
	char			 *p;
	size_t			  len;

	if (default_source)
		return;
	name = get_database_name(MyDatabaseId);
	len = strlen(name);
	utf8 = outbox_to_utf8(name, &len);

	/* If the name cannot be converted, its bytes are used as they are. */
	if (utf8 == NULL)
		utf8 = name;
	default_source = MemoryContextAlloc(TopMemoryContext, sizeof(prefix) + 3 * len);
	p = outbox_put(default_source, prefix, sizeof(prefix) - 1);
	p += outbox_percent_encode(utf8, len, p);
	*p = '\0';
}

/* ---------------------------------------------------------------------
 * Attributes
 * ---------------------------------------------------------------------
 */

/*
 * True if a header of the event can be an extension.  An event must not set names to
 * which the specification or outbox gives a meaning.
 */
static bool
is_extension(const char *name, int len)
{
	static const char *const taken[] =
		{"specversion", "id",			"source",		"type",
		 "time",		"subject",		"data",			"datacontenttype",
		 "dataschema",	"partitionkey", "outboxtenant", "outboxtest",
		 NULL};

	if (len == 0 || len > MAX_NAME)
		return false;
	for (int i = 0; i < len; i++)
		if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9')))
			return false;
	for (int i = 0; taken[i]; i++)
		if (strlen(taken[i]) == (size_t) len && memcmp(taken[i], name, len) == 0)
			return false;
	return true;
}

static Attribute *
set(Attribute *a, const char *name, const char *value, size_t len, bool ascii)
{
	strlcpy(a->name, name, sizeof(a->name));
	a->value = unconstify(char *, value);
	a->len = len;
	a->ascii = ascii;
	return a + 1;
}

/*
 * Adds the headers of the event that can be extensions, and the mark of a test.  An empty
 * value is left out, and so is trace context that is not valid.
 */
static Attribute *
set_extensions(Attribute *a, Jsonb *headers)
{
	OutboxMembers m = outbox_members(headers);
	Attribute	  state = {.len = 0};
	bool		  traced = false;
	char		  name[MAX_NAME + 1];

	while (outbox_members_next(&m))
	{
		char *s = m.value.val.string.val;
		int	  len = m.value.val.string.len;

		if (outbox_header_name_is(m.name.val.string.val, m.name.val.string.len,
								  "outbox-test"))
			strlcpy(name, "outboxtest", sizeof(name));
		else if (is_extension(m.name.val.string.val, m.name.val.string.len))
			snprintf(name, sizeof(name), "%.*s", m.name.val.string.len,
					 m.name.val.string.val);
		else
			continue;
		if (len == 0)
			continue;
		if (strcmp(name, "tracestate") == 0)
		{
			if (outbox_tracestate_valid(s, len))
				(void) set(&state, name, s, len, true);
		}
		else if (strcmp(name, "traceparent") == 0)
		{
			traced = outbox_traceparent_valid(s, len);
			if (traced)
				a = set(a, name, s, len, true);
		}
		else
			a = set(a, name, s, len, false);
	}
	if (traced && state.len > 0)
		*a++ = state;
	return a;
}

/*
 * All attributes except datacontenttype, in UTF-8, as a palloc'd array.  NULL if a
 * value has no UTF-8.  'stamp' has space for OUTBOX_TIMESTAMP_SIZE bytes.
 */
static Attribute *
collect(OutboxEvent *event, char *stamp, int *n)
{
	const char *source = outbox_source && outbox_source[0] ? outbox_source :
															 default_source;
	const char *type = event->type ? event->type : event->topic;
	Attribute  *list;
	Attribute  *a;

	a = list = palloc(sizeof(Attribute) *
					  (OUTBOX_CLOUDEVENTS_ATTRIBUTES +
					   (event->headers ? JB_ROOT_COUNT(event->headers) : 0)));
	a = set(a, "specversion", SPEC_VERSION, strlen(SPEC_VERSION), true);
	a = set(a, "id", event->id_text, strlen(event->id_text), true);
	a = set(a, "source", source, strlen(source), true);
	a = set(a, "type", type, strlen(type), false);
	a = set(a, "time", stamp, outbox_put_timestamp(stamp, event->created_at) - stamp,
			true);
	if (event->key)
	{
		a = set(a, "subject", event->key, strlen(event->key), false);
		a = set(a, "partitionkey", event->key, strlen(event->key), false);
	}
	if (event->tenant)
		a = set(a, "outboxtenant", event->tenant, strlen(event->tenant), false);
	if (event->headers)
		a = set_extensions(a, event->headers);
	*n = a - list;

	for (int i = 0; i < *n; i++)
	{
		if (list[i].ascii)
			continue;
		list[i].value = outbox_to_utf8(list[i].value, &list[i].len);
		if (list[i].value == NULL)
			return NULL;
	}
	return list;
}

/* ---------------------------------------------------------------------
 * The two modes
 * ---------------------------------------------------------------------
 */

static char *
put_member(char *p, const char *name, const char *value, size_t len)
{
	*p++ = '"';
	p = outbox_put(p, name, strlen(name));
	p = outbox_put_literal(p, "\":");
	p = outbox_put_json_string(p, value, len);
	*p++ = ',';
	return p;
}

bool
outbox_cloudevents_body(OutboxEvent *event, size_t *len, char **body)
{
	char	   stamp[OUTBOX_TIMESTAMP_SIZE];
	int		   n;
	Attribute *attributes = collect(event, stamp, &n);
	char	  *content_type = event->content_type;
	size_t	   content_type_len = content_type ? strlen(content_type) : 0;
	char	  *data = event->payload;
	size_t	   data_len = event->payload_len;
	size_t	   size;
	char	  *p;

	if (attributes == NULL)
		return false;
	if (content_type)
	{
		content_type = outbox_to_utf8(content_type, &content_type_len);
		if (content_type == NULL)
			return false;
		size = (data_len + 2) / 3 * 4;
	}
	else
	{
		data = outbox_to_utf8(data, &data_len);
		if (data == NULL)
			return false;
		size = data_len;
	}
	size += 6 * content_type_len + 100;
	for (int i = 0; i < n; i++)
		size += MAX_NAME + 6 * attributes[i].len + 6;

	p = *body = MemoryContextAllocHuge(CurrentMemoryContext, size);
	*p++ = '{';
	for (int i = 0; i < n; i++)
		p = put_member(p, attributes[i].name, attributes[i].value, attributes[i].len);
	if (content_type)
	{
		p = put_member(p, "datacontenttype", content_type, content_type_len);
		p = outbox_put_literal(p, "\"data_base64\":\"");
		p += outbox_b64_encode((uint8 *) data, (int) data_len, p,
							   (int) (size - (p - *body)));
		p = outbox_put_literal(p, "\"}");
	}
	else
	{
		p = outbox_put_literal(p, "\"datacontenttype\":\"application/json\",\"data\":");
		p = outbox_put(p, data, data_len);
		*p++ = '}';
	}
	*len = p - *body;
	pfree(attributes);
	if (data != event->payload)
		pfree(data);
	return true;
}

bool
outbox_cloudevents_headers(OutboxHeaders *out, OutboxEvent *event, const char *prefix,
						   bool encoded, bool *added)
{
	char	   stamp[OUTBOX_TIMESTAMP_SIZE];
	int		   n;
	Attribute *attributes = collect(event, stamp, &n);
	size_t	   longest = 0;
	char	  *space;

	if (attributes == NULL)
		return false;
	for (int i = 0; i < n; i++)
		longest = Max(longest, attributes[i].len);
	space = palloc(3 * longest + 1);
	for (int i = 0; i < n; i++)
	{
		char		name[MAX_PREFIX + MAX_NAME + 1];
		const char *value = attributes[i].value;
		size_t		len = attributes[i].len;

		strlcpy(name, prefix, sizeof(name));
		strlcat(name, attributes[i].name, sizeof(name));
		if (encoded)
		{
			len = outbox_percent_encode_header(value, len, space);
			value = space;
		}
		*added &= outbox_headers_add(out, name, value, len);
	}
	pfree(space);
	pfree(attributes);
	return true;
}
