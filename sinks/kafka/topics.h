#ifndef OUTBOX_KAFKA_TOPICS_H
#define OUTBOX_KAFKA_TOPICS_H

#include <stdbool.h>
#include <stdint.h>

#define KAFKA_TOPICS_MAX 1000
#define KAFKA_TOPICS_SPAN 3600000 /* ms */

/*
 * After so many new ones, another instance of librdkafka takes the place of one.  It keeps
 * each topic that it has had, asks brokers for all of them, and has them in its reports.
 */
#define KAFKA_TOPICS_OF_INSTANCE 3000

/* All zero: none yet. */
typedef struct KafkaTopics
{
	uint64_t *names; /* their hashes (0: free) */
	uint32_t  size;	 /* of 'names', a power of two */
	uint32_t  count;
	int64_t	  begun_at; /* ms, when the first one was counted */
} KafkaTopics;

/*
 * True if the topic is one of the first KAFKA_TOPICS_MAX different ones.  When
 * KAFKA_TOPICS_SPAN has passed since the first of them, the count begins anew.  False: it
 * is one too many, or there is no memory for it, and '*wait' is in how many ms to ask again,
 * at least 1.  'now' is in ms, of a clock that is never set.
 */
extern bool kafka_topics_have_room(KafkaTopics *topics, const char *name, int64_t now,
								   int64_t *wait);

/* Counts a topic where nothing limits them.  Without memory it is not counted. */
extern void kafka_topics_add(KafkaTopics *topics, const char *name);

extern void kafka_topics_clear(KafkaTopics *topics);

#endif /* OUTBOX_KAFKA_TOPICS_H */
