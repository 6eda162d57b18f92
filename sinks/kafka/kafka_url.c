/*
 * kafka_url.c
 *	  Owns what a URL of Kafka means.
 */
#include "kafka_url.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* One of "host:port,host:port".  A host is a name, an IPv4 address or [an IPv6 one]. */
static bool
is_broker(const char *text, size_t len)
{
	static const char
		*const name = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
	size_t	   host = 0;
	int		   port = 0;

	if (len > 0 && text[0] == '[')
	{
		host = 1 + strspn(text + 1, "0123456789abcdefABCDEF:.");
		if (host == 1 || host >= len || text[host++] != ']')
			return false;
	}
	else
		host = strspn(text, name);
	if (host == 0 || host > 255 + 2)
		return false;
	if (host >= len)
		return host == len;
	if (text[host] != ':' || len - host - 1 < 1 || len - host - 1 > 5)
		return false;
	for (size_t i = host + 1; i < len; i++)
	{
		if (text[i] < '0' || text[i] > '9')
			return false;
		port = port * 10 + text[i] - '0';
	}
	return port > 0 && port <= 65535;
}

static bool
is_legal(const char *text, size_t len)
{
	static const char *const legal =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	for (size_t i = 0; i < len; i++)
		if (text[i] == '\0' || strchr(legal, text[i]) == NULL)
			return false;
	return true;
}

/* Reads what stands between braces.  False: nothing has this name. */
static bool
read_place(const char *name, size_t len, KafkaPart *part)
{
	static const struct
	{
		const char *name;
		KafkaPlace	place;
	} places[] = {{"topic", KAFKA_TOPIC}, {"type", KAFKA_TYPE}, {"tenant", KAFKA_TENANT}};

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		if (strlen(places[i].name) == len && memcmp(places[i].name, name, len) == 0)
		{
			part->place = places[i].place;
			return true;
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
		if (!is_legal(part->text, text))
			return "the topic in the URL may have letters, digits, '.', '_', '-', and places in braces";
		if (text > 0)
			continue;
		name = strcspn(++p, "}");
		if (p[name] == '\0' || !read_place(p, name, part))
			return "a place in the URL is not {topic}, {topic.1} to {topic.9}, {type} or {tenant}";
		p += name + 1;
	}
	return NULL;
}

const char *
kafka_url_parse(const char *text, KafkaUrl *url)
{
	const char *brokers = strstr(text, "://");
	const char *path;
	const char *problem;
	size_t		len;

	memset(url, 0, sizeof(*url));
	if (brokers == NULL)
		return "the URL has no scheme";
	url->encrypted = brokers - text == strlen("kafkas");
	brokers += 3;
	len = strcspn(brokers, "/?#");
	if (len >= sizeof(url->brokers))
		return "the URL names too many brokers";
	memcpy(url->brokers, brokers, len);
	for (const char *p = url->brokers;; p++)
	{
		size_t one = strcspn(p, ",");

		if (!is_broker(p, one))
			return "a broker in the URL is not host:port";
		p += one;
		if (*p == '\0')
			break;
	}

	path = brokers + len;
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
kafka_url_has_places(const KafkaUrl *url)
{
	return url->nparts > 1 || url->parts[0].place != KAFKA_TEXT;
}

/* Finds what the part stands for.  Returns its text; NULL: the event has none. */
static const char *
part_text(const KafkaPart *part, const KafkaEvent *event, size_t *len)
{
	const char *text = event->topic;

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
		case KAFKA_TYPE:
			*len = event->type_len;
			return event->type;
		case KAFKA_TENANT:
			*len = event->tenant_len;
			return event->tenant;
	}
	return NULL;
}

const char *
kafka_url_topic(const KafkaUrl *url, const KafkaEvent *event, char *out)
{
	const char *problem = NULL;
	size_t		used = 0;

	for (int i = 0; i < url->nparts; i++)
	{
		size_t		len;
		const char *text = part_text(&url->parts[i], event, &len);

		if (text == NULL)
		{
			problem = url->parts[i].place == KAFKA_TENANT ?
				"its URL has {tenant}, and the event has no tenant" :
				"its URL has a segment of the topic that the event's topic does not have";
			break;
		}
		if (len > KAFKA_TOPIC_MAX - used)
			problem = "its name is longer than 249 characters";
		else if (!is_legal(text, len))
			problem = "its name may have letters, digits, '.', '_' and '-'";
		if (problem)
			break;
		memcpy(out + used, text, len);
		used += len;
	}
	out[used] = '\0';
	if (problem == NULL && (used == 0 || strcmp(out, ".") == 0 || strcmp(out, "..") == 0))
		problem = "its name is empty, \".\" or \"..\"";
	return problem;
}
