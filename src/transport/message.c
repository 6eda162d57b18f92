/*
 * message.c
 *	  Owns how an event becomes a message, for transports without header lines.
 */
#include "base/outbox.h"

#include "mb/pg_wchar.h"

#include "base/encoding.h"
#include "format/cloudevents.h"
#include "transport/message.h"

/*
 * content-type, six of our own, the endpoint's and the event's.  The attributes of
 * CloudEvents in binary mode have the event's headers again.
 */
#define MAX_HEADERS \
	(7 + OUTBOX_MAX_ENDPOINT_HEADERS + OUTBOX_MAX_EVENT_HEADERS + \
	 OUTBOX_CLOUDEVENTS_ATTRIBUTES + OUTBOX_MAX_EVENT_HEADERS)

/* Milliseconds from the unix epoch to PostgreSQL's. */
#define EPOCH_MS ((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY * 1000)

/* Written anew for each message. */
static OutboxHeaders lines;
static OutboxHeader	 headers[MAX_HEADERS];
static char			 key[OUTBOX_MAX_KEY * MAX_CONVERSION_GROWTH];

/* Points the array at the header lines.  Returns how many there are. */
static int
name_headers(void)
{
	int n = Min(lines.nlines, MAX_HEADERS);

	for (int i = 0; i < n; i++)
	{
		const OutboxHeaderLine *line = &lines.lines[i];
		const char			   *name = lines.buf + line->start;

		headers[i] = (OutboxHeader){.name = name,
									.name_len = line->name_len,
									.value = name + line->name_len + strlen(": "),
									.value_len = line->value_len};
	}
	return n;
}

/* Returns false if the key has no UTF-8. */
static bool
fill_key(OutboxMessage *m, OutboxEvent *event)
{
	char *utf8;

	if (event->key == NULL)
		return true;
	m->key_len = strlen(event->key);
	utf8 = outbox_to_utf8(event->key, &m->key_len);
	m->key = utf8;
	if (utf8 == NULL || utf8 == event->key)
		return utf8 != NULL;
	memcpy(key, utf8, m->key_len);
	m->key = key;
	pfree(utf8);
	return true;
}

const char *
outbox_message_fill(OutboxMessage *m, OutboxEvent *event,
					const OutboxRequestConfig *settings, int attempt,
					OutboxRedelivery redelivery, const char *prefix)
{
	const char *problem;

	outbox_headers_reset(&lines);
	problem = outbox_request_message_headers(&lines, event, settings, attempt, redelivery,
											 prefix, m->body);
	if (problem)
		return problem;
	if (!fill_key(m, event))
		return "invalid key";
	m->nheaders = name_headers();
	m->headers = headers;
	m->id = event->id_text;
	m->topic = event->topic;
	m->sequence = event->seq;
	m->created_ms = event->created_at / 1000 + EPOCH_MS;
	m->attempt = attempt;
	return NULL;
}
