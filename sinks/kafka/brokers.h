/*
 * brokers.h
 *	  Reads the state of brokers from librdkafka's statistics, as pure functions.  A
 *	  report need not end with a NUL.
 */
#ifndef OUTBOX_KAFKA_BROKERS_H
#define OUTBOX_KAFKA_BROKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Bytes of a report that are read: brokers and 1,000 partitions, in some ms.  A broker can
 * name more, which would take a part of each second from all endpoints.
 */
#define KAFKA_REPORT_MAX (1024 * 1024)

/* µs after which a broker that owes an answer is called silent */
#define KAFKA_SILENT_AFTER 1250000

/* A broker is told from others by its number, modulo this. */
#define KAFKA_LOAD_SLOTS 64

/* The messages that librdkafka has to send, or waits for. */
typedef struct KafkaLoad
{
	int messages;
	int partitions[KAFKA_LOAD_SLOTS]; /* that have some, of each broker */
} KafkaLoad;

/* Begins as zeros, and is read again with each report. */
typedef struct KafkaBrokers
{
	bool	up;			 /* one is connected */
	bool	known;		 /* one has said which brokers there are */
	char	owing[65];	 /* the one that has owed an answer for longest ("": none does) */
	int64_t owing_since; /* µs, of the report's clock */
	char	silent[128]; /* that it has for too long, in words ("": none has) */
} KafkaBrokers;

extern int	kafka_load_slot(int32_t broker);
extern void kafka_load_read(KafkaLoad *load, const char *report, size_t len);

/*
 * ms that a thread waits for an answer before it looks around: if all that may be sent
 * to its broker was sent, most likely, and if not.
 */
#define KAFKA_ANSWER_WITHIN 200
#define KAFKA_ANSWER_SOON 5

/*
 * Which of the two it is: 'requests' are under way to the broker, 'all_requests' to all
 * brokers, and librdkafka has so many messages.
 */
extern int	kafka_load_wait(const KafkaLoad *load, int slot, int requests,
							int all_requests, int messages);
extern void kafka_brokers_read(KafkaBrokers *b, const char *report, size_t len);

#endif /* OUTBOX_KAFKA_BROKERS_H */
