/*
 * kafka_url.c
 *	  Owns the meaning of a URL of Kafka.
 */
#include "kafka_url.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "../sink.h"

bool
kafka_url_is_legal(const char *text, size_t len)
{
	static const char *const legal =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	for (size_t i = 0; i < len; i++)
		if (text[i] == '\0' || strchr(legal, text[i]) == NULL)
			return false;
	return true;
}

#define HEADER "header."

/* Reads the name between braces.  False: nothing has this name. */
static bool
read_place(const char *name, size_t len, KafkaPart *part)
{
	static const struct
	{
		const char *name;
		KafkaPlace	place;
	} places[] = {{"topic", KAFKA_TOPIC},
				  {"type", KAFKA_TYPE},
				  {"tenant", KAFKA_TENANT},
				  {"key", KAFKA_KEY}};

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		if (strlen(places[i].name) == len && memcmp(places[i].name, name, len) == 0)
		{
			part->place = places[i].place;
			return true;
		}
	if (len > strlen(HEADER) && memcmp(name, HEADER, strlen(HEADER)) == 0)
	{
		part->place = KAFKA_HEADER;
		part->text = name + strlen(HEADER);
		part->len = len - strlen(HEADER);

		/* Some of ours are others with each attempt: it would lead to another topic. */
		return strncasecmp(part->text, "outbox-", strlen("outbox-")) != 0 &&
			kafka_url_is_legal(part->text, part->len);
	}
	part->place = KAFKA_SEGMENT;
	if (len != 7 || memcmp(name, "topic.", 6) != 0 || name[6] < '1' || name[6] > '9')
		return false;
	part->segment = name[6] - '0';
	return true;
}

static const char *
read_parts(KafkaUrl *url)
{
	const char *p = url->path;

	while (*p)
	{
		KafkaPart *part = &url->parts[url->nparts];
		size_t	   text = strcspn(p, "{");
		size_t	   name;

		if (url->nparts == KAFKA_PARTS_MAX)
			return "the topic in the URL has more than 16 parts";
		url->nparts++;
		part->text = p;
		part->len = text;
		p += text;
		if (!kafka_url_is_legal(part->text, text))
			return "the topic in the URL may have letters, digits, '.', '_', '-', and places in braces";
		if (text > 0)
			continue;
		name = strcspn(++p, "}");
		if (p[name] == '\0' || !read_place(p, name, part))
			return "a place in the URL is not {topic}, {topic.1} to {topic.9}, {type}, {tenant}, {key} or {header.NAME}";
		p += name + 1;
	}
	return NULL;
}

/* Takes the next broker of a URL, in one form: a lower-case name, and always a port. */
static bool
add_broker(KafkaUrl *url, size_t *used, const char *broker, size_t len)
{
	bool has_port = memchr(broker, ':', len) != NULL;
	int	 n;

	if (broker[0] == '[')
		has_port = broker[len - 1] != ']';
	n = snprintf(url->brokers + *used, sizeof(url->brokers) - *used, "%s%.*s%s",
				 *used > 0 ? "," : "", (int) len, broker, has_port ? "" : ":9092");
	if ((size_t) n >= sizeof(url->brokers) - *used)
		return false;
	for (; n > 0; n--, (*used)++)
		if (url->brokers[*used] >= 'A' && url->brokers[*used] <= 'Z')
			url->brokers[*used] += 'a' - 'A';
	return true;
}

const char *
kafka_url_parse(const char *text, KafkaUrl *url)
{
	const char *p = text;
	const char *path;
	const char *problem;
	size_t		used = 0;

	memset(url, 0, sizeof(*url));
	url->encrypted = strncasecmp(text, "kafkas://", strlen("kafkas://")) == 0;
	if (!url->encrypted && strncasecmp(text, "kafka://", strlen("kafka://")) != 0)
		return "the URL begins with neither kafka:// nor kafkas://";
	p += strlen("kafka://") + url->encrypted;
	for (;; p++)
	{
		size_t len = strcspn(p, ",/?#");

		if (len == 0 || sink_host_port(p) != len)
			return "a broker in the URL is not host:port";
		if (!add_broker(url, &used, p, len))
			return "the URL names too many brokers";
		p += len;
		if (*p != ',')
			break;
	}

	path = p;
	if (*path == '/')
		path++;
	if (strpbrk(path, "?#"))
		return "the URL has more than brokers and a topic";
	if (*path == '\0')
		path = "{topic}";
	if (strlen(path) >= sizeof(url->path))
		return "the topic in the URL is too long";
	strcpy(url->path, path);
	problem = read_parts(url);
	if (problem)
		return problem;
	if (url->nparts == 1 && url->parts[0].place == KAFKA_TEXT &&
		(url->parts[0].len > KAFKA_TOPIC_MAX || strcmp(path, ".") == 0 ||
		 strcmp(path, "..") == 0))
		return "the topic in the URL is one that Kafka cannot have";
	return NULL;
}

bool
kafka_url_leads_to(const KafkaUrl *all, const KafkaUrl *some)
{
	for (const char *p = some->brokers; *p; p += strcspn(p, ","), p += *p == ',')
	{
		size_t		len = strcspn(p, ",");
		const char *q = all->brokers;

		while (*q && (strcspn(q, ",") != len || memcmp(p, q, len) != 0))
		{
			q += strcspn(q, ",");
			q += *q == ',';
		}
		if (*q == '\0')
			return false;
	}
	return all->encrypted == some->encrypted;
}

bool
kafka_url_has_places(const KafkaUrl *url)
{
	return url->nparts > 1 || url->parts[0].place != KAFKA_TEXT;
}
