/*
 * kafka_url.h
 *	  URLs of Kafka, as pure functions.
 */
#ifndef OUTBOX_KAFKA_URL_H
#define OUTBOX_KAFKA_URL_H

#include <stdbool.h>
#include <stddef.h>

#define KAFKA_TOPIC_MAX 249

/* A part of the topic in a URL: text as it is, or something of the event. */
typedef enum KafkaPlace
{
	KAFKA_TEXT,
	KAFKA_TOPIC,   /* {topic} */
	KAFKA_SEGMENT, /* {topic.1}: a segment of it */
	KAFKA_TYPE,	   /* {type} */
	KAFKA_TENANT   /* {tenant} */
} KafkaPlace;

typedef struct KafkaPart
{
	KafkaPlace	place;
	int			segment; /* from 1 */
	const char *text;	 /* in KafkaUrl.path */
	size_t		len;
} KafkaPart;

#define KAFKA_PARTS_MAX 16

/* kafka[s]://host:port,host:port/topic, with places in braces. */
typedef struct KafkaUrl
{
	bool	  encrypted;
	char	  brokers[1024]; /* as librdkafka's bootstrap.servers */
	char	  path[512];
	int		  nparts;
	KafkaPart parts[KAFKA_PARTS_MAX];
} KafkaUrl;

/* What the places stand for, each with its length.  NULL: the event has none. */
typedef struct KafkaEvent
{
	const char *topic;
	const char *type;
	size_t		type_len;
	const char *tenant;
	size_t		tenant_len;
} KafkaEvent;

/* Returns what is wrong with the URL, static text; NULL: nothing. */
extern const char *kafka_url_parse(const char *text, KafkaUrl *url);

/* False: all events have the same topic. */
extern bool kafka_url_has_places(const KafkaUrl *url);

/*
 * Writes the Kafka topic for an event.  Returns what is wrong with it, static text;
 * NULL: nothing.  'out' has KAFKA_TOPIC_MAX + 1 bytes, and is text in any case.
 */
extern const char *kafka_url_topic(const KafkaUrl *url, const KafkaEvent *event,
								   char *out);

#endif /* OUTBOX_KAFKA_URL_H */
