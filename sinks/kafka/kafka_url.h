/*
 * kafka_url.h
 *	  URLs of Kafka, as pure functions.
 */
#ifndef OUTBOX_KAFKA_URL_H
#define OUTBOX_KAFKA_URL_H

#include <stdbool.h>
#include <stddef.h>

#define KAFKA_TOPIC_MAX 249

/* kafka[s]://host:port,host:port/topic, with {topic} for the topic of the event. */
typedef struct KafkaUrl
{
	bool encrypted;
	char brokers[1024]; /* as librdkafka's bootstrap.servers */
	char before[KAFKA_TOPIC_MAX + 1];
	bool has_topic; /* {topic} stands between 'before' and 'after' */
	char after[KAFKA_TOPIC_MAX + 1];
} KafkaUrl;

/* Returns what is wrong with the URL, static text; NULL: nothing. */
extern const char *kafka_url_parse(const char *text, KafkaUrl *url);

/*
 * Writes the Kafka topic for an event.  Returns false if Kafka cannot have a topic of
 * that name.  'out' has KAFKA_TOPIC_MAX + 1 bytes.
 */
extern bool kafka_url_topic(const KafkaUrl *url, const char *topic, char *out);

#endif /* OUTBOX_KAFKA_URL_H */
