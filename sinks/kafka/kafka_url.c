/*
 * kafka_url.c
 *	  Owns what a URL of Kafka means.
 */
#include "kafka_url.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define PLACE "{topic}"

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
is_legal(const char *topic)
{
	static const char *const legal =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	return topic[strspn(topic, legal)] == '\0';
}

const char *
kafka_url_parse(const char *text, KafkaUrl *url)
{
	const char *brokers = strstr(text, "://");
	const char *path;
	const char *place;
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
		path = PLACE;
	place = strstr(path, PLACE);
	len = place ? (size_t) (place - path) : strlen(path);
	if (len > KAFKA_TOPIC_MAX ||
		(place && strlen(place) - strlen(PLACE) > KAFKA_TOPIC_MAX))
		return "the topic in the URL is longer than 249 characters";
	memcpy(url->before, path, len);
	url->has_topic = place != NULL;
	if (place)
		strcpy(url->after, place + strlen(PLACE));
	if (!is_legal(url->before) || !is_legal(url->after))
		return "the topic in the URL may have letters, digits, '.', '_', '-', and {topic} once";
	if (!url->has_topic &&
		(strcmp(url->before, ".") == 0 || strcmp(url->before, "..") == 0))
		return "the topic in the URL is one that Kafka cannot have";
	return NULL;
}

bool
kafka_url_topic(const KafkaUrl *url, const char *topic, char *out)
{
	int len = snprintf(out, KAFKA_TOPIC_MAX + 1, "%s%s%s", url->before,
					   url->has_topic ? topic : "", url->after);

	return len > 0 && len <= KAFKA_TOPIC_MAX && is_legal(out) && strcmp(out, ".") != 0 &&
		strcmp(out, "..") != 0;
}
