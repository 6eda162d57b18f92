/*
 * test_kafka_topics.c
 *	  The events of an endpoint of Kafka lead to 1,000 different topics an hour at most, and
 *	  how many there were is counted in little memory (TAP).
 *
 * links: sinks/kafka/topics.c
 */
#include <malloc.h>
#include <stdio.h>

#include "../../sinks/kafka/topics.h"
#include "tap.h"

static KafkaTopics topics;
static int64_t	   wait;

static bool
has_room(int number, int64_t now)
{
	char name[64];

	snprintf(name, sizeof(name), "shop.t-%d", number);
	wait = -1;
	return kafka_topics_have_room(&topics, name, now, &wait);
}

/* How many of these have room */
static int
count(int first, int last, int64_t now)
{
	int n = 0;

	for (int i = first; i <= last; i++)
		n += has_room(i, now);
	return n;
}

int
main(void)
{
	int64_t begun = 5000;
	int64_t end = begun + KAFKA_TOPICS_SPAN;

	ok(has_room(1, begun), "the first one has room", "", "");
	ok(count(1, KAFKA_TOPICS_MAX, begun + 10) == 1000, "1,000 different ones have", "",
	   "");
	ok(!has_room(1001, begun + 10), "another one has not", "", "");
	ok(wait == KAFKA_TOPICS_SPAN - 10, "and waits until the hour is over", "", "");
	ok(count(1001, 3000, end - 1) == 0 && wait == 1, "nor has any other until then", "",
	   "");
	ok(count(1, KAFKA_TOPICS_MAX, end - 1) == 1000, "those that were counted have", "",
	   "");
	ok(malloc_usable_size(topics.names) < 17 * 1024, "they take 16 kB", "", "");
	ok(count(2001, 4000, end) == 1000, "after the hour, 1,000 others have", "", "");
	ok(!has_room(1, end + KAFKA_TOPICS_SPAN - 1), "and no more in its hour", "", "");
	ok(has_room(1, end + KAFKA_TOPICS_SPAN), "which counts from the first of them", "",
	   "");
	ok(malloc_usable_size(topics.names) < 1024, "few take less", "", "");
	kafka_topics_clear(&topics);
	ok(topics.names == NULL && count(1, 2000, end) == 1000, "it can begin anew", "", "");
	kafka_topics_clear(&topics);
	for (int i = 0; i < 10000; i++)
	{
		char name[64];

		snprintf(name, sizeof(name), "shop.t-%d", i % 5000);
		kafka_topics_add(&topics, name);
	}
	ok(topics.count == 5000, "where nothing limits them, each is counted once", "", "");
	return done_testing();
}
