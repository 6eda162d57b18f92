/*
 * account.h
 *	  What brokers have cost: the instances of librdkafka that were made for them, and
 *	  the CPU of these.
 */
#ifndef OUTBOX_KAFKA_ACCOUNT_H
#define OUTBOX_KAFKA_ACCOUNT_H

#include "postgres.h"

#include "kafka_security.h"
#include "kafka_url.h"
#include "lib/ilist.h"
#include "transport/transport.h"

/* ms until librdkafka gives a record up, at least as many as it must have */
#define KAFKA_TIMEOUT(account) Max((account)->timeout, 1000)

/*
 * Of all instances for the same brokers, with the same settings.  A broker can make an
 * instance end at any time, so what it has cost must not be forgotten with the instance.
 */
typedef struct KafkaAccount
{
	dlist_node	  node; /* of all accounts */
	KafkaUrl	  url;	/* only its brokers */
	KafkaSecurity security;
	int			  timeout; /* ms */
	int			  connect_timeout;
	int			  links;	  /* that use it */
	int			  instances;  /* that have threads */
	int64		  earned;	  /* ns of CPU that stored records may have cost */
	int64		  ended;	  /* ns of CPU of instances that have ended */
	int64		  spent;	  /* ns of CPU of all instances ... */
	int64		  counted_at; /* ... by then, in ms */
} KafkaAccount;

/*
 * Finds or makes the account.  Takes over what 'security' has.  NULL: out of memory.
 * Each one that was got is given back.
 */
extern KafkaAccount *kafka_account_get(const KafkaUrl *url, KafkaSecurity *security,
									   const OutboxTarget *target);
extern void			 kafka_account_put(KafkaAccount *a);

/* An instance is to begin.  False: it may not, and 'reason' says why. */
extern bool kafka_account_begins(KafkaAccount *a, char *reason, size_t size);

/* The instance has no thread any more.  Any thread may say so. */
extern void kafka_account_ends(KafkaAccount *a);

/* Waits until no account has an instance, at most so many s. */
extern void kafka_accounts_wait(int seconds);

/*
 * True once in a while, if instances have used more CPU since then than they may.  'cpu'
 * is that of the instances that have not ended, in ns, which have had so many topics.
 */
extern bool kafka_account_is_due(const KafkaAccount *a);
extern bool kafka_account_used_too_much(KafkaAccount *a, int64 cpu, int64 topics);

/* Of a record that was stored, and of a topic that is new */
extern void kafka_account_record(KafkaAccount *a, size_t bytes);
extern void kafka_account_topics(KafkaAccount *a, int topics);

#endif /* OUTBOX_KAFKA_ACCOUNT_H */
