/*
 * topics.c
 *	  Owns the count of different topics that the events of one endpoint lead to.
 *
 * A topic that is made of the event could be another one for each event.  Brokers that make
 * topics by themselves would make them without end, and librdkafka keeps data of each.
 * Only hashes of the names are kept, 16 kB for 1,000 of them.  They are seeded, so that
 * a role that emits events cannot choose names with the same hash.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "topics.h"

#define FIRST_SIZE 16
#define WAIT_FOR_MEMORY 1000 /* ms */

static uint64
hash_of(const char *name)
{
	static uint64 seed;
	uint64		  hash;

	if (seed == 0 && !pg_strong_random(&seed, sizeof(seed)))
		seed = (uint64) (uintptr_t) &hash;
	hash = hash_bytes_extended((const unsigned char *) name, (int) strlen(name), seed);
	return hash ? hash : 1;
}

/* Where the hash is, or would be. */
static uint64 *
find(const KafkaTopics *topics, uint64 hash)
{
	uint32 i = (uint32) hash & (topics->size - 1);

	while (topics->names[i] != 0 && topics->names[i] != hash)
		i = (i + 1) & (topics->size - 1);
	return &topics->names[i];
}

/* At most half of the places are taken. */
static bool
grow(KafkaTopics *topics)
{
	KafkaTopics larger = *topics;

	if (topics->count < topics->size / 2)
		return true;
	larger.size = topics->size ? topics->size * 2 : FIRST_SIZE;
	larger.names = calloc(larger.size, sizeof(*larger.names));
	if (larger.names == NULL)
		return false;
	for (uint32 i = 0; i < topics->size; i++)
		if (topics->names[i])
			*find(&larger, topics->names[i]) = topics->names[i];
	free(topics->names);
	*topics = larger;
	return true;
}

static bool
has(const KafkaTopics *topics, uint64 hash)
{
	return topics->count > 0 && *find(topics, hash) == hash;
}

/* False: there is no memory for it.  It is not there yet. */
static bool
add(KafkaTopics *topics, uint64 hash)
{
	if (!grow(topics))
		return false;
	topics->count++;
	*find(topics, hash) = hash;
	return true;
}

bool
kafka_topics_have_room(KafkaTopics *topics, const char *name, int64_t now, int64_t *wait)
{
	uint64 hash = hash_of(name);

	if (topics->count > 0 && now - topics->begun_at >= KAFKA_TOPICS_SPAN)
		kafka_topics_clear(topics);
	if (has(topics, hash))
		return true;
	if (topics->count == KAFKA_TOPICS_MAX)
		*wait = topics->begun_at + KAFKA_TOPICS_SPAN - now;
	else if (!add(topics, hash))
		*wait = WAIT_FOR_MEMORY;
	else
	{
		if (topics->count == 1)
			topics->begun_at = now;
		return true;
	}
	return false;
}

void
kafka_topics_add(KafkaTopics *topics, const char *name)
{
	uint64 hash = hash_of(name);

	if (!has(topics, hash))
		(void) add(topics, hash);
}

void
kafka_topics_clear(KafkaTopics *topics)
{
	free(topics->names);
	memset(topics, 0, sizeof(*topics));
}
