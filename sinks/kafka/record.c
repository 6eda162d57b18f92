/*
 * record.c
 *	  Owns how a message becomes a record: its topic, its headers and its value.
 */
#include "postgres.h"

#include "record.h"

#include "../sink.h"
#include "port/pg_bswap.h"

/* Confluent's wire format: a zero, and the number of a schema in big-endian order. */
#define SCHEMA_PREFIX 5

/* ------------------------------------------------------------- options */

const char *
kafka_record_options(const OutboxTarget *target, KafkaRecordOptions *options,
					 const char **hint)
{
	const char *tombstones = sink_option(target->config, target->nconfig, "tombstones");
	const char *headers = sink_option(target->config, target->nconfig, "headers");
	const char *schema_id = sink_option(target->config, target->nconfig, "schema_id");

	memset(options, 0, sizeof(*options));
	if (tombstones && strcmp(tombstones, "true") != 0 && strcmp(tombstones, "false") != 0)
	{
		*hint = "Use true or false.";
		return "tombstones in config is neither true nor false";
	}
	options->tombstones = tombstones && strcmp(tombstones, "true") == 0;
	if (headers && strcmp(headers, "debezium") != 0)
	{
		*hint = "Use debezium, or leave it out.";
		return "headers in config is not debezium";
	}
	options->debezium = headers != NULL;
	if (schema_id)
	{
		char *end;
		long  number = strtol(schema_id, &end, 10);

		if (*schema_id < '0' || *schema_id > '9' || *end || number > PG_INT32_MAX)
		{
			*hint =
				"Use the number that the registry gave the schema, from 0 to 2147483647.";
			return "schema_id in config is no number of a schema";
		}
		options->has_schema_id = true;
		options->schema_id = (uint32_t) number;
	}
	return NULL;
}

/* -------------------------------------------------------------- records */

static const OutboxHeader *
find_header(const OutboxMessage *m, const char *name, size_t len)
{
	for (int i = 0; i < m->nheaders; i++)
		if (m->headers[i].name_len == len &&
			pg_strncasecmp(m->headers[i].name, name, len) == 0)
			return &m->headers[i];
	return NULL;
}

static bool
has_content_type(const OutboxMessage *m, const char *type)
{
	const OutboxHeader *h = find_header(m, "content-type", strlen("content-type"));
	size_t				len = strlen(type);

	return h && h->value_len >= len && pg_strncasecmp(h->value, type, len) == 0 &&
		(h->value_len == len || h->value[len] == ';' || h->value[len] == ' ');
}

bool
kafka_record_value(const KafkaRecordOptions *options, const OutboxMessage *m,
				   const char **value, size_t *len, char **owned)
{
	uint32 number = pg_hton32(options->schema_id);
	bool   json;

	*value = m->body;
	*len = m->body_len;
	*owned = NULL;
	if (!options->tombstones && !options->has_schema_id)
		return true;

	/* A consumer would take a record without a key for no deletion of anything. */
	json = has_content_type(m, "application/json");
	if (options->tombstones && json && m->key && m->body_len == 4 &&
		memcmp(m->body, "null", 4) == 0)
	{
		*value = NULL;
		*len = 0;
		return true;
	}
	if (!options->has_schema_id || json ||
		has_content_type(m, "application/cloudevents+json"))
		return true;
	*owned = malloc(m->body_len + SCHEMA_PREFIX);
	if (*owned == NULL)
		return false;
	(*owned)[0] = 0;
	memcpy(*owned + 1, &number, sizeof(number));
	memcpy(*owned + SCHEMA_PREFIX, m->body, m->body_len);
	*value = *owned;
	*len = m->body_len + SCHEMA_PREFIX;
	return true;
}

rd_kafka_headers_t *
kafka_record_headers(const KafkaRecordOptions *options, const OutboxMessage *m)
{
	rd_kafka_headers_t *headers = rd_kafka_headers_new(m->nheaders + 1);

	for (int i = 0; i < m->nheaders; i++)
	{
		const OutboxHeader *h = &m->headers[i];

		if (options->debezium && h->name_len == 2 &&
			pg_strncasecmp(h->name, "id", 2) == 0)
			continue; /* consumers would know the event by an id that its emitter chose */
		rd_kafka_header_add(headers, h->name, h->name_len, h->value, h->value_len);
	}
	if (options->debezium)
		rd_kafka_header_add(headers, "id", 2, m->id, strlen(m->id));
	return headers;
}

/* ---------------------------------------------------------------- topics */

/* Returns the text that the part stands for.  NULL: the event has none. */
static const char *
part_text(const KafkaPart *part, const OutboxMessage *m, size_t *len)
{
	const OutboxHeader *header;
	const char		   *text = m->topic;

	switch (part->place)
	{
		case KAFKA_TEXT:
			*len = part->len;
			return part->text;
		case KAFKA_TOPIC:
			*len = strlen(text);
			return text;
		case KAFKA_SEGMENT:
			for (int i = 1; i < part->segment && text; i++)
			{
				text = strchr(text, '.');
				text = text ? text + 1 : NULL;
			}
			*len = text ? strcspn(text, ".") : 0;
			return text;
		case KAFKA_KEY:
			*len = m->key_len;
			return m->key;
		case KAFKA_TYPE:
			header = find_header(m, "outbox-type", strlen("outbox-type"));
			break;
		case KAFKA_TENANT:
			header = find_header(m, "outbox-tenant", strlen("outbox-tenant"));
			break;
		case KAFKA_HEADER:
			header = find_header(m, part->text, part->len);
			break;
		default:
			return NULL;
	}
	*len = header ? header->value_len : 0;
	return header ? header->value : NULL;
}

static const char *
why_missing(KafkaPlace place)
{
	switch (place)
	{
		case KAFKA_TENANT:
			return "its URL has {tenant}, and the event has no tenant";
		case KAFKA_KEY:
			return "its URL has {key}, and the event has no key";
		case KAFKA_HEADER:
			return "its URL has a header that the event does not have";
		default:
			return "its URL has a segment of the topic that the event's topic does not have";
	}
}

const char *
kafka_record_topic(const KafkaUrl *url, const OutboxMessage *m, char *out)
{
	const char *problem = NULL;
	size_t		used = 0;

	for (int i = 0; i < url->nparts && problem == NULL; i++)
	{
		size_t		len;
		const char *text = part_text(&url->parts[i], m, &len);

		if (text == NULL)
		{
			problem = why_missing(url->parts[i].place);
			break;
		}
		if (len > KAFKA_TOPIC_MAX - used)
			problem = "its name is longer than 249 characters";
		else if (!kafka_url_is_legal(text, len))
			problem = "its name may have letters, digits, '.', '_' and '-'";

		/* The cut name shows the problem. */
		len = Min(len, KAFKA_TOPIC_MAX - used);
		memcpy(out + used, text, len);
		used += len;
	}
	out[used] = '\0';
	if (problem == NULL && (used == 0 || strcmp(out, ".") == 0 || strcmp(out, "..") == 0))
		problem = "its name is empty, \".\" or \"..\"";
	return problem;
}
