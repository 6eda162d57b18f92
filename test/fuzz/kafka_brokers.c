/*
 * kafka_brokers.c
 *	  Fuzz target: what librdkafka reports of brokers, with names that they choose.
 *
 *	  Zero bytes divide reports, which are read one after the other.
 *
 * links: sinks/kafka/brokers.c
 */
#include "../../sinks/kafka/brokers.h"
#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	KafkaBrokers b = {.up = false};
	KafkaLoad	 load;

	while (size > 0)
	{
		const char *report = (const char *) data;
		size_t		len = strnlen(report, size);

		kafka_brokers_read(&b, report, len);
		kafka_load_read(&load, report, len);
		MUST(memchr(b.owing, '\0', sizeof(b.owing)) != NULL);
		MUST(memchr(b.silent, '\0', sizeof(b.silent)) != NULL);
		MUST(b.silent[0] == '\0' || b.owing[0] != '\0' || (b.up && !b.known));
		data += len < size ? len + 1 : len;
		size -= len < size ? len + 1 : len;
	}
	return 0;
}
