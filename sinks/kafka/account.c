/*
 * account.c
 *	  Owns what brokers have cost, and bounds it: how many instances of librdkafka there
 *	  are for them, and how much CPU these use.
 *
 * All of it is counted over one instance after the other.  A broker makes an instance end
 * when it is another cluster, refuses a producer, or refuses a batch as too large.  After
 * some answers librdkafka waits for ever for a thread of an instance that ends, such as
 * after the partition -1.
 */
#include "account.h"

#include <pthread.h>
#include <time.h>

#include "../sink.h"

/*
 * One is used, and one may have the records that were too large together.  Each of these may
 * have another one, which asks which cluster there is now.  The rest is for those that end.
 */
#define INSTANCES_MAX 6

/*
 * Threads of librdkafka may use so much of a core for so many ms, beside the cost of
 * the records that were stored meanwhile.  A record costs a tenth of this allowance, or
 * less.  While a topic is new, the metadata of all topics are read again and again: 2,000
 * topics of 3,000 cost 1.7 ms each.
 */
#define CPU_FOR 10000
#define CPU_SHARE 0.2
#define CPU_RECORD 100000  /* ns */
#define CPU_BYTE 20		   /* ns */
#define CPU_TOPIC 20000000 /* ns */

static dlist_head accounts = DLIST_STATIC_INIT(accounts);

/* Of the list above, and of links and instances of each account */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  instance_ended = PTHREAD_COND_INITIALIZER;

/* 'lock' is held, and given back. */
static void
unlock_and_free_unused(KafkaAccount *a)
{
	bool unused = a->links == 0 && a->instances == 0;

	if (unused)
		dlist_delete(&a->node);
	pthread_mutex_unlock(&lock);
	if (unused)
	{
		kafka_security_clear(&a->security);
		free(a);
	}
}

static KafkaAccount *
find(const KafkaUrl *url, const KafkaSecurity *security, const OutboxTarget *target)
{
	dlist_iter iter;

	dlist_foreach(iter, &accounts)
	{
		KafkaAccount *a = dlist_container(KafkaAccount, node, iter.cur);

		if (a->timeout == target->timeout &&
			a->connect_timeout == target->connect_timeout &&
			a->url.encrypted == url->encrypted &&
			strcmp(a->url.brokers, url->brokers) == 0 &&
			kafka_security_equal(&a->security, security))
			return a;
	}
	return NULL;
}

KafkaAccount *
kafka_account_get(const KafkaUrl *url, KafkaSecurity *security,
				  const OutboxTarget *target)
{
	KafkaAccount *made = calloc(1, sizeof(*made));
	KafkaAccount *a;

	pthread_mutex_lock(&lock);
	a = find(url, security, target);
	if (a == NULL && made)
	{
		a = made;
		made = NULL;
		a->url = *url;
		a->security = *security;
		a->timeout = target->timeout;
		a->connect_timeout = target->connect_timeout;
		dlist_push_tail(&accounts, &a->node);
		memset(security, 0, sizeof(*security));
	}
	if (a)
		a->links++;
	pthread_mutex_unlock(&lock);
	free(made);
	kafka_security_clear(security);
	return a;
}

void
kafka_account_put(KafkaAccount *a)
{
	pthread_mutex_lock(&lock);
	a->links--;
	unlock_and_free_unused(a);
}

/* ----------------------------------------------------------- instances */

bool
kafka_account_begins(KafkaAccount *a, char *reason, size_t size)
{
	bool may;

	pthread_mutex_lock(&lock);
	may = a->instances < INSTANCES_MAX;
	a->instances += may;
	pthread_mutex_unlock(&lock);
	if (!may)
		strlcpy(reason, "former instances of librdkafka do not end", size);
	return may;
}

void
kafka_account_ends(KafkaAccount *a)
{
	pthread_mutex_lock(&lock);
	a->instances--;
	pthread_cond_broadcast(&instance_ended);
	unlock_and_free_unused(a);
}

static bool
has_instances(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &accounts) if (dlist_container(KafkaAccount, node, iter.cur)
										   ->instances > 0) return true;
	return false;
}

void
kafka_accounts_wait(int seconds)
{
	struct timespec until;
	int				waited = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += seconds;
	pthread_mutex_lock(&lock);
	while (has_instances() && waited == 0)
		waited = pthread_cond_timedwait(&instance_ended, &lock, &until);
	pthread_mutex_unlock(&lock);
}

/* ----------------------------------------------------------------- CPU */

void
kafka_account_record(KafkaAccount *a, size_t bytes)
{
	a->earned += CPU_RECORD + CPU_BYTE * (int64) bytes;
}

void
kafka_account_topics(KafkaAccount *a, int topics)
{
	a->earned += CPU_TOPIC * topics;
}

bool
kafka_account_is_due(const KafkaAccount *a)
{
	return sink_now_ms() - a->counted_at >= CPU_FOR;
}

bool
kafka_account_used_too_much(KafkaAccount *a, int64 cpu, int64 topics)
{
	int64 now = sink_now_ms();
	int64 before = a->counted_at;
	int64 spent = a->ended + cpu - a->spent;

	a->spent += spent;
	a->counted_at = now;

	/* New topics cost for a while, so their allowance may be used later. */
	spent -= a->earned;
	a->earned = Min(Max(-spent, 0), CPU_TOPIC * topics);
	return before > 0 && spent > (now - before) * 1000000 * CPU_SHARE;
}
