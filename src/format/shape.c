/*
 * shape.c
 *	  Owns templates: JSON whose strings have places for parts of an event.
 *
 * A template is copied, and the text of a part is put where its place is.  The payload is
 * JSON text as jsonb prints it, and so is the template.  So a part is found by passing over
 * the text before it, and nothing is parsed into a tree, converted or calculated: numbers
 * keep their digits, and the time is at most proportional to the length of the payload
 * times the number of paths.  Nothing here throws an error but for a lack of memory.
 */
#include "base/outbox.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"

#include "base/encoding.h"
#include "format/shape.h"
#include "log/page.h"
#include "log/payload.h"

/* A part of a text.  'start' is NULL if there is none. */
typedef struct Slice
{
	const char *start;
	const char *end;
} Slice;

/* What a template is filled with, and the result.  'event' is NULL while it is checked. */
typedef struct Filling
{
	const OutboxEvent *event;
	bool			   needs_all;
	uint64			   work;
	StringInfoData	   out;
	const char		  *problem;
} Filling;

#define NO_PLACE "a place in the template of the payload is not valid"
#define TOO_LARGE "the template makes a payload of more than 2 MB"
#define TOO_LONG "the payload is too long for so many paths in the template"

static void
fail(Filling *f, const char *problem)
{
	if (f->problem == NULL)
		f->problem = problem;
}

/* ------------------------------------------------ JSON as jsonb prints it */

static const char *
skip_string(const char *p, const char *end)
{
	for (p++; p < end && *p != '"'; p++)
		if (*p == '\\')
			p++;
	return p < end ? p + 1 : end;
}

/* A number or a word ends where the next value, or its container, does. */
static const char *
skip_value(const char *p, const char *end)
{
	int depth = 0;

	if (p < end && *p == '"')
		return skip_string(p, end);
	if (p < end && *p != '{' && *p != '[')
	{
		while (p < end && *p != ',' && *p != '}' && *p != ']')
			p++;
		return p;
	}
	while (p < end)
	{
		if (*p == '"')
		{
			p = skip_string(p, end);
			continue;
		}
		depth += *p == '{' || *p == '[' ? 1 : *p == '}' || *p == ']' ? -1 : 0;
		p++;
		if (depth == 0)
			return p;
	}
	return end;
}

/* Behind a comma or a colon is a space. */
static const char *
skip_space(const char *p, const char *end)
{
	while (p < end && *p == ' ')
		p++;
	return p;
}

/* The value of a member of the object at 'p'. */
static const char *
find_member(const char *p, const char *end, Slice name)
{
	size_t len = name.end - name.start;

	if (p == end || *p != '{')
		return NULL;
	for (p++; p < end && *p == '"';)
	{
		const char *key = p + 1;

		p = skip_string(p, end);
		if ((size_t) (p - 1 - key) == len && memcmp(key, name.start, len) == 0)
			return skip_space(p + 1, end);
		p = skip_value(skip_space(p + 1, end), end);
		if (p == end || *p != ',')
			return NULL;
		p = skip_space(p + 1, end);
	}
	return NULL;
}

/* The element n of the array at 'p', or with -1 the last one. */
static const char *
find_element(const char *p, const char *end, int n)
{
	if (p == end || *p != '[' || p[1] == ']')
		return NULL;
	p++;
	for (int i = 0;; i++)
	{
		const char *next = skip_value(p, end);

		if (i == n)
			return p;
		if (next == end || *next != ',')
			return n < 0 ? p : NULL;
		p = skip_space(next + 1, end);
	}
}

/* ------------------------------------------------------------- places */

static bool
is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		c == '_' || (c & 0x80) != 0;
}

/* A name in a path: .name or ."name", whose quotes are escaped in the template. */
static const char *
read_name(const char *p, const char *end, Slice *name)
{
	bool quoted = p + 1 < end && p[0] == '\\' && p[1] == '"';

	p += quoted ? 2 : 0;
	name->start = p;
	while (p < end && (quoted ? *p != '\\' : is_name_char(*p)))
		p++;
	name->end = p;
	if (name->end == name->start ||
		(!quoted && name->start[0] >= '0' && name->start[0] <= '9') ||
		(quoted && (p + 1 >= end || p[1] != '"')))
		return NULL;
	return quoted ? p + 2 : p;
}

/* A subscript in a path: [7] or [last], which is -1. */
static const char *
read_subscript(const char *p, const char *end, int *n)
{
	const char *start = p;

	*n = 0;
	if (end - p > 5 && memcmp(p, "last]", 5) == 0)
	{
		*n = -1;
		return p + 5;
	}
	while (p < end && *p >= '0' && *p <= '9' && p - start < 8)
		*n = *n * 10 + *p++ - '0';
	return p == start || p == end || *p != ']' ? NULL : p + 1;
}

/*
 * Follows a path, which begins behind its "$".  Returns where it ends; NULL: it is not
 * valid.  '*at' becomes the value that it leads to; NULL: there is none.
 */
static const char *
follow(const char *p, const char *end, const char **at, const char *payload_end)
{
	while (p && p < end && *p != '}')
	{
		Slice name;
		int	  n;

		if (*p == '.')
		{
			p = read_name(p + 1, end, &name);
			if (p && *at)
				*at = find_member(*at, payload_end, name);
		}
		else if (*p == '[')
		{
			p = read_subscript(p + 1, end, &n);
			if (p && *at)
				*at = find_element(*at, payload_end, n);
		}
		else
			return NULL;
	}
	return p && p < end ? p : NULL;
}

static void
put(Filling *f, const char *s, size_t len)
{
	if (f->problem)
		return;
	if (f->out.len + len > OUTBOX_SHAPED_MAX)
		fail(f, TOO_LARGE);
	else if (f->event)
		appendBinaryStringInfo(&f->out, s, (int) len);
}

/* A text that is no JSON yet, as a string, or inside of one. */
static void
put_text(Filling *f, const char *s, size_t len, bool inside)
{
	int start = f->out.len;

	if (f->problem || f->event == NULL)
		return;
	if (len > OUTBOX_SHAPED_MAX || f->out.len + 6 * len > 8 * OUTBOX_SHAPED_MAX)
	{
		fail(f, TOO_LARGE);
		return;
	}
	outbox_append_json_string(&f->out, s, (int) len);
	if (inside)
	{
		f->out.len -= 2;
		memmove(f->out.data + start, f->out.data + start + 1, f->out.len - start);
		f->out.data[f->out.len] = '\0';
	}
	if (f->out.len > OUTBOX_SHAPED_MAX)
		fail(f, TOO_LARGE);
}

/* What the event lacks is null by itself, and nothing inside of a text. */
static void
put_missing(Filling *f, Slice place, bool inside)
{
	static char words[128];

	if (f->event && f->needs_all)
	{
		snprintf(words, sizeof(words), "the event has nothing for %.*s of the template",
				 pg_mbcliplen(place.start, (int) (place.end - place.start), 64),
				 place.start);
		fail(f, words);
	}
	else if (!inside)
		put(f, "null", 4);
}

static void
put_part(Filling *f, Slice part, bool inside)
{
	const char *s = part.start;
	size_t		len = part.end - part.start;

	if (!inside)
		put(f, s, len);
	else if (*s == '"')
		put(f, s + 1, len - 2);
	else if (*s == '{' || *s == '[')
		put_text(f, s, len, true);
	else if (*s != 'n') /* null */
		put(f, s, len);
}

/* A path: '$' and what follows.  Returns where it ends; NULL: it is not valid. */
static const char *
put_path(Filling *f, Slice place, const char *end, bool inside)
{
	const OutboxEvent *event = f->event;
	const char		  *at = NULL;
	const char		  *payload_end = NULL;
	const char		  *p;

	if (event && event->content_type == NULL && event->payload_len > 0)
	{
		at = event->payload;
		payload_end = at + event->payload_len;
		f->work += event->payload_len;
		if (f->work > OUTBOX_SHAPE_MAX_WORK)
		{
			fail(f, TOO_LONG);
			at = NULL;
		}
	}
	p = follow(place.start + 2, end, &at, payload_end);
	if (p == NULL)
		return NULL;
	place.end = p + 1;
	if (at)
		put_part(f, (Slice){at, skip_value(at, payload_end)}, inside);
	else
		put_missing(f, place, inside);
	return p + 1;
}

/* The part of the event that has a name.  False: none has.  '*value' may be NULL. */
static bool
named_part(const OutboxEvent *event, const char *name, size_t len, char *time,
		   const char **value)
{
	static const char *const names[] = {"id", "topic", "type", "key", "tenant", "time"};
	size_t					 i = 0;

	while (i < lengthof(names) &&
		   (strlen(names[i]) != len || memcmp(names[i], name, len) != 0))
		i++;
	if (i == lengthof(names))
		return false;
	*value = event == NULL ? NULL :
		i == 0			   ? event->id_text :
		i == 1			   ? event->topic :
		i == 2			   ? (event->type ? event->type : event->topic) :
		i == 3			   ? event->key :
		i == 4			   ? event->tenant :
							 time;
	if (event && *value == time)
		*outbox_put_timestamp(time, event->created_at) = '\0';
	return true;
}

/* A place, which begins with "{".  Returns where it ends; NULL: it is not valid. */
static const char *
put_place(Filling *f, const char *p, const char *end, bool inside)
{
	char		time[OUTBOX_TIMESTAMP_SIZE];
	const char *value;
	Slice		place = {p, memchr(p, '}', end - p)};

	if (p + 1 < end && p[1] == '$')
		return put_path(f, place, end, inside);
	if (place.end == NULL ||
		!named_part(f->event, p + 1, place.end - p - 1, time, &value))
		return NULL;
	place.end++;
	if (value)
		put_text(f, value, strlen(value), inside);
	else
		put_missing(f, place, inside);
	return place.end;
}

/* The text of a string.  "{{" and "}}" stand for the braces themselves. */
static void
fill_string(Filling *f, const char *p, const char *end)
{
	const char *only = *p == '{' && p[1] != '{' ?
		put_place(&(Filling){0}, p, end, false) :
		NULL;

	if (only == end)
	{
		(void) put_place(f, p, end, false);
		return;
	}
	put(f, "\"", 1);
	while (p < end)
	{
		const char *start = p;

		while (p < end && *p != '{' && *p != '}')
			p++;
		put(f, start, p - start);
		if (p == end)
			break;
		if (p + 1 < end && p[1] == p[0])
		{
			put(f, p, 1);
			p += 2;
		}
		else if (*p == '}' || (p = put_place(f, p, end, true)) == NULL)
		{
			fail(f, NO_PLACE);
			return;
		}
	}
	put(f, "\"", 1);
}

/* Names of members are copied as they are. */
static void
fill(Filling *f, const char *text)
{
	const char *end = text + strlen(text);

	for (const char *p = text; p < end && f->problem == NULL;)
	{
		const char *start = p;

		while (p < end && *p != '"')
			p++;
		put(f, start, p - start);
		if (p == end)
			break;
		start = p;
		p = skip_string(p, end);
		if (p < end && *p == ':')
			put(f, start, p - start);
		else
			fill_string(f, start + 1, p - 1);
	}
}

const char *
outbox_shape_problem(const char *text, const char **hint)
{
	Filling f = {.event = NULL};

	*hint =
		"Write it like {\"text\": \"Order {$.order} for {$.total}\"}. In strings there may be {id}, {topic}, {type}, {key}, {tenant}, {time}, and paths of names and subscripts like {$.items[0].name} or {$.\"a-b\"}. Write {{ and }} for braces.";
	if (strlen(text) > OUTBOX_SHAPE_MAX)
	{
		*hint = "Use at most 4096 bytes.";
		return "the template of the payload is too long";
	}
	if (text[0] != '{' && text[0] != '[')
		return "the template of the payload is no object or array";
	fill(&f, text);
	return f.problem;
}

static char *
copy_text(const char *text)
{
	return text ? pstrdup(text) : NULL;
}

/* The copy has the texts that its body and header lines are made of. */
static OutboxEvent *
copy_event(const OutboxEvent *event, OutboxPage *page)
{
	OutboxEvent *copy = palloc(sizeof(OutboxEvent));

	*copy = *event;
	copy->page = page;
	copy->topic = copy_text(event->topic);
	copy->type = copy_text(event->type);
	copy->key = copy_text(event->key);
	copy->tenant = copy_text(event->tenant);
	copy->order_key = NULL;
	copy->content_type = NULL;
	copy->whole = NULL;
	memset(copy->body, 0, sizeof(copy->body));
	if (event->headers)
	{
		copy->headers = palloc(VARSIZE(event->headers));
		memcpy(copy->headers, event->headers, VARSIZE(event->headers));
	}
	return copy;
}

/* Takes over the caller's reference to the page of 'event'. */
static OutboxEvent *
shape_event(OutboxEvent *event, const OutboxShape *shape, const char **problem)
{
	OutboxPage	 *page = outbox_page_create(NULL, NULL);
	MemoryContext old = MemoryContextSwitchTo(page->cxt);
	OutboxEvent	 *copy = copy_event(event, page);
	Filling		  f = {.event = event, .needs_all = shape->needs_all};

	page->lsn = event->page->lsn;
	initStringInfo(&f.out);
	fill(&f, shape->text);
	MemoryContextSwitchTo(old);
	outbox_page_unref(event->page);
	*problem = f.problem;
	if (f.problem)
	{
		outbox_page_unref(page);
		return NULL;
	}
	copy->payload = f.out.data;
	copy->payload_len = f.out.len;
	outbox_page_account(page);
	return copy;
}

OutboxEvent *
outbox_shape_load(OutboxEvent *event, const OutboxShape *shape, OutboxFormat format,
				  int32 endpoint_id, bool *gone, const char **problem)
{
	*problem = NULL;
	if (shape->text == NULL)
		return outbox_payload_load(event, format, endpoint_id, gone);
	event = outbox_payload_load(event, OUTBOX_PAYLOAD_ITSELF, endpoint_id, gone);
	return event ? shape_event(event, shape, problem) : NULL;
}

/*
 * Returns the most that a template makes of an event.  In a text a byte of a part becomes up to
 * two, and one of a name up to six.
 */
static size_t
shaped_most(const OutboxEvent *event, const char *text)
{
	size_t part = event->content_type ? 0 : 2 * (size_t) event->payload_len;
	size_t most = strlen(text);

	for (const char *p = strchr(text, '{'); p && most < OUTBOX_SHAPED_MAX;
		 p = strchr(p + 1, '{'))
	{
		if (p[1] == '$')
			most += part;
		else if (p[1] == 'k') /* key */
			most += 6 * OUTBOX_MAX_KEY;
		else if (p[1] >= 'a' && p[1] <= 'z')
			most += 6 * OUTBOX_MAX_TYPE;
	}
	return Min(most, OUTBOX_SHAPED_MAX);
}

/* The body is another copy of what the template makes. */
size_t
outbox_shape_cost(const OutboxEvent *event, const OutboxShape *shape, OutboxFormat format)
{
	if (shape->text == NULL)
		return outbox_payload_cost(event, format);
	return outbox_payload_cost(event, OUTBOX_PAYLOAD_ITSELF) +
		2 * shaped_most(event, shape->text);
}
