/*
 * threads.h
 *	  Functions that run in threads of librdkafka, and the data that these leave for the
 *	  worker.
 */
#ifndef OUTBOX_KAFKA_THREADS_H
#define OUTBOX_KAFKA_THREADS_H

#include "cluster.h"

/* Once per process.  'fd' becomes readable when a thread has something for the worker. */
extern void kafka_threads_init(const OutboxServices *services, int fd);

/* Before the instance is made: librdkafka is to call the functions of threads.c. */
extern void kafka_threads_watch(rd_kafka_conf_t *conf, KafkaCluster *c);

/* After all threads of the instance have ended. */
extern void kafka_threads_ended(KafkaCluster *c);

/* Reads 'flooded', 'talks' or 'unsure' of the cluster. */
extern bool kafka_threads_say(KafkaCluster *c, const bool *flag);

/* ns of CPU that all threads of the instance have used */
extern int64 kafka_threads_cpu(KafkaCluster *c);

/*
 * Ends its connections, and lets no other one begin.  A thread of librdkafka reads for as
 * long as there is something, and does not see before that its instance is to end.
 */
extern void kafka_threads_cut(KafkaCluster *c);

/*
 * Why brokers have lately not taken records that librdkafka repeats; false: nothing is
 * known.  It says nothing else of them until their timeout.
 */
extern bool kafka_threads_trouble(KafkaCluster *c, char *words, size_t size);

/* True if a broker may not be connected to.  Writes why. */
extern bool kafka_threads_refused(KafkaCluster *c, char *reason, size_t size);

/*
 * From now on, after all connections are gone, a new one waits until it is known that it
 * is to the same cluster.
 */
extern void kafka_threads_has_id(KafkaCluster *c);

/* It is: one that begins within three seconds is to the same cluster. */
extern void kafka_threads_same_cluster(KafkaCluster *c);

/* Addresses that were refused may be allowed now. */
extern void kafka_threads_allow_again(KafkaCluster *c);

/* Takes the figures that the threads use from a report of librdkafka's statistics. */
extern void kafka_threads_report(KafkaCluster *c, const char *report, size_t len);

#endif /* OUTBOX_KAFKA_THREADS_H */
