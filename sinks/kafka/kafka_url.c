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

/* Reads what stands between braces.  False: nothing has this name. */
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
