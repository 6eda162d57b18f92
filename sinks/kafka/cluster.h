#ifndef OUTBOX_KAFKA_CLUSTER_H
#define OUTBOX_KAFKA_CLUSTER_H

#include "postgres.h"

#include <librdkafka/rdkafka.h>
#include <pthread.h>

#include "account.h"
#include "brokers.h"
#include "../sink.h"
#include "kafka_security.h"
#include "lib/ilist.h"
#include "port/atomics.h"
#include "topics.h"
#include "transport/transport.h"

#define KAFKA_SOCKETS 100
#define KAFKA_BROKERS_MAX 100
#define KAFKA_THREADS 120 /* whose CPU is counted: of brokers, and librdkafka's own */

typedef struct KafkaCluster
{
	dlist_node			 node; /* of all clusters */
	KafkaAccount		*account;
	volatile int32		 endpoint; /* the last one that has got it */
	KafkaSecurity		 security;
	rd_kafka_t			*rk;
	rd_kafka_queue_t	*queue;
	bool				 one_by_one; /* each of its records is a batch by itself */
	int					 links;		 /* that use it */
	pg_atomic_uint32	 produced;	 /* messages that librdkafka has */
	int					 wanted;	 /* of these, messages that were not cancelled */
	const char			*busy;		 /* why its threads are ended (NULL: they may run) */
	int					 cancelled;	 /* cancelled messages without a report yet */
	int64				 cancelled_at;	  /* ms, when the first of them was */
	bool				 fatal;			  /* a new instance has to take its place */
	int64				 throttled_until; /* ms, as brokers say (0: they do not) */
	bool				 purged;
	bool				 outdated;	 /* links are to leave it, and find another one */
	KafkaTopics			 topics;	 /* that records of links with places have led to */
	int					 new_topics; /* of these, topics that were new to a link */
	rd_kafka_topic_t	*handle; /* of the topic that was used last (NULL: none was) */
	rd_kafka_event_t	*statistics; /* not read yet (NULL: there are none) */
	bool				 overfull;	 /* they have too many partitions */
	KafkaBrokers		 brokers;
	char				 reason[128]; /* why it is not up, or the last error */
	char				 id[64];	  /* of its cluster ("": its brokers gave none) */
	struct KafkaCluster *successor;	  /* asks for the id anew (NULL: none is needed) */
	pthread_mutex_t		 lock;		  /* of the fields below */
	bool				 has_id;	  /* its producer may have a number of that cluster */
	int					 sockets[KAFKA_SOCKETS]; /* connections (0: none) */
	int64				 same_until; /* ms; until then one connection may begin */
	bool				 unsure; /* none was begun, for it may be to another cluster */
	KafkaLoad			 load;	 /* as reported last */
	int		  requests[KAFKA_LOAD_SLOTS]; /* that brokers have not answered, of records */
	int		  all_requests;
	bool	  cut;					 /* no connection may begin */
	int64	  unasked;				 /* answers to nothing ... */
	bool	  talks;				 /* ... and there were too many */
	int64	  metadata;				 /* bytes since the last report ... */
	bool	  crowded;				 /* ... and there were too many */
	int		  threads;				 /* of brokers */
	clockid_t clocks[KAFKA_THREADS]; /* of threads that run; their number: */
	int		  nclocks;
	int64	  spent_before;	   /* ns of CPU of threads that have ended */
	bool	  flooded;		   /* brokers have named too many */
	char	  trouble[64];	   /* why brokers did not take records, at 'trouble_at' */
	int64	  trouble_at;	   /* ms (0: never) */
	char	  refused[128];	   /* why a broker may not be connected to ("": none) */
	char	  refused_id[320]; /* the broker, as librdkafka names it */
} KafkaCluster;

/* Once per process.  'fd' becomes readable when a cluster has an event. */
extern void kafka_clusters_init(const OutboxServices *services, int fd);

/*
 * Finds or makes the cluster.  NULL: it cannot be made, and 'reason' says why.  Each
 * one that was got is given back.
 */
extern KafkaCluster *kafka_cluster_get(KafkaAccount *account, int32 endpoint,
									   bool one_by_one, char *reason, size_t size);
extern void			 kafka_cluster_put(KafkaCluster *c);

/* A record of a link leads to this topic.  'new_to_link': the first one does. */
extern void kafka_cluster_topic(KafkaCluster *c, const char *name, bool new_to_link);

/* librdkafka's handle of a topic, until the next call.  NULL: rd_kafka_last_error() */
extern rd_kafka_topic_t *kafka_cluster_handle(KafkaCluster *c, const char *topic);

/* 'now', in ms, is when the batch of reports was read to which this one belongs. */
typedef void (*KafkaReport)(KafkaCluster *c, const rd_kafka_message_t *m, int64 now);

/*
 * Reads the events of all clusters, and ends clusters that nothing uses.  True: there
 * are more events.  'hostile': the brokers of a cluster break the protocol, and its
 * links are to leave it.
 */
extern bool kafka_clusters_poll(KafkaReport report, bool *hostile);

/* ms after which it has to be polled in any case.  -1: never */
extern long kafka_clusters_timeout(void);

/*
 * True if it can be sent to.  If not, writes why.  If so, writes which broker is silent,
 * if one is.
 */
extern bool kafka_cluster_is_up(KafkaCluster *c, char *reason, size_t size);

/*
 * True after a fatal error of the idempotent producer: librdkafka sends nothing more of
 * this instance, and reports all records that it has with that error.  Writes which.
 */
extern bool kafka_cluster_has_failed(KafkaCluster *c, char *reason, size_t size);

/*
 * True if it was ended because its brokers kept its threads busy, or made too many of them.
 * Another one is to begin later.  Writes why.
 */
extern bool kafka_cluster_was_busy(KafkaCluster *c, char *reason, size_t size);

/* Addresses that were refused may be allowed now, and files of TLS may be others. */
extern void kafka_clusters_reload(void);

/* Ends all, and waits at most a second for their threads. */
extern void kafka_clusters_shutdown(void);

#endif /* OUTBOX_KAFKA_CLUSTER_H */
