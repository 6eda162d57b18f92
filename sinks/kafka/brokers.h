/*
 * brokers.h
 *	  What librdkafka's statistics say of brokers, as pure functions.
 */
#ifndef OUTBOX_KAFKA_BROKERS_H
#define OUTBOX_KAFKA_BROKERS_H

#include <stdbool.h>
#include <stdint.h>

/* µs after which a broker that owes an answer is called silent */
#define KAFKA_SILENT_AFTER 1250000

/* Begins as zeros, and is read again with each report. */
typedef struct KafkaBrokers
{
	bool	up;			 /* one is connected */
	bool	known;		 /* one has said which brokers there are */
	char	owing[65];	 /* the one that has owed an answer for longest; "": none does */
	int64_t owing_since; /* µs, of the report's clock */
	char	silent[128]; /* that it has for too long, in words; "": none has */
} KafkaBrokers;

extern void kafka_brokers_read(KafkaBrokers *b, const char *report);

#endif /* OUTBOX_KAFKA_BROKERS_H */
