/*
 * aws_entry.c
 *	  Owns how an event becomes an entry of SQS, SNS, EventBridge or Kinesis.
 *
 * An entry that the service would refuse is found here, so that no event makes the
 * request of others fail.
 */
#include "aws_entry.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/json_read.h"

#define ATTRIBUTES_MAX 10
#define GROUP_MAX 128		  /* characters */
#define PARTITION_KEY_MAX 256 /* bytes */
#define DETAIL_TYPE_MAX 128
#define TIME_BYTES 14 /* that EventBridge counts for an entry's time */
#define HASH_TEXT 65

static const char ATTRIBUTE_CHARACTERS[] =
	"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

/* SHA-256 in hexadecimal */
static void
hash(const char *data, size_t len, char out[HASH_TEXT])
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned int  n = 0;

	if (EVP_Digest(data, len, digest, &n, EVP_sha256(), NULL) != 1)
		n = 0;
	for (unsigned int i = 0; i < n && i < (HASH_TEXT - 1) / 2; i++)
		snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/*
 * The group that events of a key have in common.  Without a key, each event is alone.
 * 'out' is used for a key that the service does not take as it is.
 */
static const char *
group(const OutboxMessage *m, bool any_character, size_t max, char out[HASH_TEXT],
	  size_t *len)
{
	bool fits = m->key_len > 0 && m->key_len <= max;

	if (m->key == NULL)
	{
		*len = strlen(m->id);
		return m->id;
	}
	for (size_t i = 0; fits && !any_character && i < m->key_len; i++)
		fits = m->key[i] > 0x20 && m->key[i] < 0x7f;
	*len = m->key_len;
	if (fits)
		return m->key;
	hash(m->key, m->key_len, out);
	*len = HASH_TEXT - 1;
	return out;
}

static bool
is_named(const OutboxHeader *h, const char *name)
{
	return h->name_len == strlen(name) && memcmp(h->name, name, h->name_len) == 0;
}

/* ---------------------------------------------------------- attributes */

/*
 * A header that differs between deliveries of an event is none, so an event with ten
 * attributes can be sent again.  An empty value cannot be one.
 */
static bool
is_attribute(const OutboxHeader *h)
{
	return !is_named(h, "outbox-attempt") && !is_named(h, "outbox-redelivery") &&
		h->value_len > 0;
}

static const char *
check_attributes(const OutboxMessage *m, size_t *bytes)
{
	int n = 0;

	for (int i = 0; i < m->nheaders; i++)
	{
		const OutboxHeader *h = &m->headers[i];

		if (!is_attribute(h))
			continue;
		if (++n > ATTRIBUTES_MAX)
			return "it has more headers than a message may have attributes, which is 10";
		for (size_t k = 0; k < h->name_len; k++)
			if (h->name[k] == '\0' || strchr(ATTRIBUTE_CHARACTERS, h->name[k]) == NULL)
				return "a name of a header has a character that a name of an attribute cannot have";
		if (!aws_is_xml_text(h->value, h->value_len))
			return "a header has a character that XML does not have, so it cannot be an attribute";
		*bytes += h->name_len + strlen("String") + h->value_len;
	}
	return NULL;
}

static void
add_attributes(const OutboxMessage *m, AwsText *out)
{
	bool first = true;

	aws_add_text(out, ",\"MessageAttributes\":{");
	for (int i = 0; i < m->nheaders; i++)
	{
		const OutboxHeader *h = &m->headers[i];

		if (!is_attribute(h))
			continue;
		aws_add_text(out, first ? "" : ",");
		aws_add_json(out, h->name, h->name_len);
		aws_add_text(out, ":{\"DataType\":\"String\",\"StringValue\":");
		aws_add_json(out, h->value, h->value_len);
		aws_add_text(out, "}");
		first = false;
	}
	aws_add_text(out, "}");
}

static void
add_form_attributes(const OutboxMessage *m, AwsText *out)
{
	int n = 0;

	for (int i = 0; i < m->nheaders; i++)
	{
		const OutboxHeader *h = &m->headers[i];
		char				prefix[64];

		if (!is_attribute(h))
			continue;
		snprintf(prefix, sizeof(prefix), "&MessageAttributes.entry.%d.", ++n);
		aws_add_text(out, prefix);
		aws_add_text(out, "Name=");
		aws_add_percent(out, h->name, h->name_len);
		aws_add_text(out, prefix);
		aws_add_text(out, "Value.DataType=String");
		aws_add_text(out, prefix);
		aws_add_text(out, "Value.StringValue=");
		aws_add_percent(out, h->value, h->value_len);
	}
}

/* ------------------------------------------------------------- entries */

static const char *
check_text(const OutboxMessage *m, size_t *bytes)
{
	if (m->body_len == 0)
		return "its body is empty";
	if (!aws_is_xml_text(m->body, m->body_len))
		return "its body has bytes that are no UTF-8, or a character that XML does not have";
	return check_attributes(m, bytes);
}

/* Without the brace and the Id before it */
static void
write_sqs(const AwsTarget *t, const OutboxMessage *m, AwsText *out)
{
	char   hashed[HASH_TEXT];
	size_t len;

	aws_add_text(out, "\"MessageBody\":");
	aws_add_json(out, m->body, m->body_len);
	add_attributes(m, out);
	if (t->fifo)
	{
		const char *name = group(m, false, GROUP_MAX, hashed, &len);

		aws_add_text(out, ",\"MessageGroupId\":");
		aws_add_json(out, name, len);
		aws_add_text(out, ",\"MessageDeduplicationId\":");
		aws_add_json(out, m->id, strlen(m->id));
	}
	aws_add_text(out, "}");
}

/* Parameters, each without the prefix that numbers the entry */
static void
write_sns(const AwsTarget *t, const OutboxMessage *m, AwsText *out)
{
	char   hashed[HASH_TEXT];
	size_t len;

	aws_add_text(out, "Message=");
	aws_add_percent(out, m->body, m->body_len);
	add_form_attributes(m, out);
	if (t->fifo)
	{
		const char *name = group(m, false, GROUP_MAX, hashed, &len);

		aws_add_text(out, "&MessageGroupId=");
		aws_add_percent(out, name, len);
		aws_add_text(out, "&MessageDeduplicationId=");
		aws_add_percent(out, m->id, strlen(m->id));
	}
}

static const char *
write_event(const AwsTarget *t, const char *source, const OutboxMessage *m, AwsText *out,
			size_t *bytes)
{
	const char *type = m->topic;
	size_t		len = strlen(type);
	char		number[32];

	for (int i = 0; i < m->nheaders; i++)
		if (is_named(&m->headers[i], "outbox-type"))
		{
			type = m->headers[i].value;
			len = m->headers[i].value_len;
		}
	if (len > DETAIL_TYPE_MAX)
		return "its type is longer than 128 bytes";
	if (m->body_len == 0 || m->body[strspn(m->body, " \t\r\n")] != '{' ||
		!outbox_json_read(m->body, m->body_len, NULL, NULL))
		return "its body is no JSON object";
	*bytes += TIME_BYTES + strlen(source) + len + strlen("urn:uuid:") + strlen(m->id);
	aws_add_text(out, "{\"Source\":");
	aws_add_json(out, source, strlen(source));
	aws_add_text(out, ",\"DetailType\":");
	aws_add_json(out, type, len);
	snprintf(number, sizeof(number), "%lld.%03d", (long long) (m->created_ms / 1000),
			 (int) (m->created_ms % 1000));
	aws_add_text(out, ",\"Time\":");
	aws_add_text(out, number);
	aws_add_text(out, ",\"Resources\":[\"urn:uuid:");
	aws_add_text(out, m->id);
	aws_add_text(out, "\"],\"EventBusName\":");
	aws_add_json(out, t->arn, strlen(t->arn));
	aws_add_text(out, ",\"Detail\":");
	aws_add_json(out, m->body, m->body_len);
	aws_add_text(out, "}");
	return NULL;
}

static void
write_record(const OutboxMessage *m, AwsText *out, size_t *bytes)
{
	char		hashed[HASH_TEXT];
	size_t		len;
	const char *key = group(m, true, PARTITION_KEY_MAX, hashed, &len);

	*bytes += len;
	aws_add_text(out, "{\"PartitionKey\":");
	aws_add_json(out, key, len);
	aws_add_text(out, ",\"Data\":\"");
	aws_add_base64(out, m->body, m->body_len);
	aws_add_text(out, "\"}");
}

const char *
aws_entry_write(const AwsTarget *t, const char *source, const OutboxMessage *m,
				AwsText *out, size_t *bytes)
{
	const char *problem = NULL;

	*bytes = m->body_len;
	if (m->body_len > t->facts->entry_bytes)
		return "it is larger than the service takes";
	switch (t->service)
	{
		case AWS_SQS:
			problem = check_text(m, bytes);
			if (problem == NULL)
				write_sqs(t, m, out);
			break;
		case AWS_SNS:
			problem = check_text(m, bytes);
			if (problem == NULL)
				write_sns(t, m, out);
			break;
		case AWS_EVENTS:
			problem = write_event(t, source, m, out, bytes);
			break;
		case AWS_KINESIS:
			write_record(m, out, bytes);
			break;
	}
	if (problem == NULL && *bytes > t->facts->entry_bytes)
		problem = "it is larger than the service takes, with its attributes";
	return problem;
}

/* --------------------------------------------------------------- bodies */

void
aws_body_begin(const AwsTarget *t, AwsText *body)
{
	switch (t->service)
	{
		case AWS_SQS:
			aws_add_text(body, "{\"QueueUrl\":");
			aws_add_json(body, t->queue_url, strlen(t->queue_url));
			aws_add_text(body, ",\"Entries\":[");
			break;
		case AWS_SNS:
			aws_add_text(body, "Action=PublishBatch&Version=2010-03-31&TopicArn=");
			aws_add_percent(body, t->arn, strlen(t->arn));
			break;
		case AWS_EVENTS:
			aws_add_text(body, "{\"Entries\":[");
			break;
		case AWS_KINESIS:
			aws_add_text(body, "{\"StreamARN\":");
			aws_add_json(body, t->arn, strlen(t->arn));
			aws_add_text(body, ",\"Records\":[");
			break;
	}
}

static void
add_form_entry(AwsText *body, int i, const AwsText *entry)
{
	const char *p = entry->data;
	const char *end = p + entry->len;
	char		prefix[64];

	snprintf(prefix, sizeof(prefix), "&PublishBatchRequestEntries.member.%d.", i + 1);
	aws_add_text(body, prefix);
	aws_add_text(body, "Id=");
	aws_add_number(body, i);
	while (p < end)
	{
		const char *amp = memchr(p, '&', (size_t) (end - p));
		const char *stop = amp ? amp : end;

		aws_add_text(body, prefix);
		aws_add(body, p, (size_t) (stop - p));
		p = amp ? amp + 1 : end;
	}
}

void
aws_body_add(const AwsTarget *t, AwsText *body, int i, const AwsText *entry)
{
	if (t->service == AWS_SNS)
	{
		add_form_entry(body, i, entry);
		return;
	}
	aws_add_text(body, i > 0 ? "," : "");
	if (t->service == AWS_SQS)
	{
		aws_add_text(body, "{\"Id\":\"");
		aws_add_number(body, i);
		aws_add_text(body, "\",");
	}
	aws_add(body, entry->data, entry->len);
}

void
aws_body_end(const AwsTarget *t, AwsText *body)
{
	if (t->service != AWS_SNS)
		aws_add_text(body, "]}");
}
