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
	KAFKA_TENANT,  /* {tenant} */
	KAFKA_KEY,	   /* {key} */
	KAFKA_HEADER   /* {header.NAME} */
} KafkaPlace;

typedef struct KafkaPart
{
	KafkaPlace	place;
	int			segment; /* from 1 */
	const char *text;	 /* in KafkaUrl.path: the text, or the name of the header */
	size_t		len;
} KafkaPart;

#define KAFKA_PARTS_MAX 16

/* kafka[s]://host:port,host:port/topic, with places in braces. */
typedef struct KafkaUrl
{
	bool encrypted;
	char brokers[1024]; /* as librdkafka's bootstrap.servers, in lower case, with ports */
	char path[512];
	int	 nparts;
	KafkaPart parts[KAFKA_PARTS_MAX];
} KafkaUrl;

/* Returns the problem with the URL, static text.  NULL: none. */
extern const char *kafka_url_parse(const char *text, KafkaUrl *url);

/* True if all brokers of 'some' are brokers of 'all', and both or neither are encrypted. */
extern bool kafka_url_leads_to(const KafkaUrl *all, const KafkaUrl *some);

/* False: all events have the same topic. */
extern bool kafka_url_has_places(const KafkaUrl *url);

/* True if all of it may be in the name of a topic. */
extern bool kafka_url_is_legal(const char *text, size_t len);

#endif /* OUTBOX_KAFKA_URL_H */
