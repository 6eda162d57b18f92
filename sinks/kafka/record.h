#ifndef OUTBOX_KAFKA_RECORD_H
#define OUTBOX_KAFKA_RECORD_H

#include <librdkafka/rdkafka.h>

#include "kafka_url.h"
#include "transport/transport.h"

typedef struct KafkaRecordOptions
{
	bool	 tombstones; /* JSON null becomes a record without a value */
	bool	 debezium;	 /* header "id", as Debezium's */
	bool	 has_schema_id;
	uint32_t schema_id;
} KafkaRecordOptions;

/* Returns the problem with the config, static text, and a hint.  NULL: none. */
extern const char *kafka_record_options(const OutboxTarget *target,
										KafkaRecordOptions *options, const char **hint);

/*
 * The value of the record.  '*owned' is NULL, or memory that is freed when the record
 * has ended.  False: out of memory.
 */
extern bool kafka_record_value(const KafkaRecordOptions *options, const OutboxMessage *m,
							   const char **value, size_t *len, char **owned);

extern rd_kafka_headers_t *kafka_record_headers(const KafkaRecordOptions *options,
												const OutboxMessage		 *m);

/*
 * Writes the topic for an event.  Returns the problem with it, static text.  NULL: none.
 * 'out' has KAFKA_TOPIC_MAX + 1 bytes, and is a string in any case.  A wrong topic may
 * end within a character.
 */
extern const char *kafka_record_topic(const KafkaUrl *url, const OutboxMessage *m,
									  char *out);

#endif /* OUTBOX_KAFKA_RECORD_H */
