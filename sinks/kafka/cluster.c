/*
 * cluster.c
 *	  Owns the instances of librdkafka: how they are made and ended, their connections,
 *	  and what they say of their brokers.
 *
 * librdkafka has threads.  It blocks all signals in them.  Of outbox, only connect_to()
 * and the functions of watch_threads() run there, which call no function of PostgreSQL.
 * Everything else comes as an event, which the worker reads.
 */
#include "cluster.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <time.h>

#include "utils/guc.h"

#define EVENTS_AT_ONCE 10000
#define BROKERS_MAX 300
#define END_WITHIN 2		  /* s */
#define TOKEN_EVERY 500		  /* ms, while one is wanted and cannot be had */
#define CANCELLED_WITHIN 1000 /* ms in which what was cancelled may still be sent */
#define LATELY 3000			  /* ms; librdkafka tries again after 100 ms, or up to 1 s */
#define PRODUCE 0			  /* the number of this request in Kafka's protocol */

static dlist_head	  clusters = DLIST_STATIC_INIT(clusters);
static OutboxServices services;
static int			  event_fd;

/* Instances that are being ended, each by a thread of its own. */
static pthread_mutex_t ending_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  ending_changed = PTHREAD_COND_INITIALIZER;
static int			   ending;

void
kafka_clusters_init(const OutboxServices *given, int fd)
{
	services = *given;
	event_fd = fd;
}

int64
kafka_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* -------------------------------------------- what threads of librdkafka call */

/*
 * Runs in a thread of librdkafka, for each connection, also to brokers that another
 * broker has named.  Returns 0 or an errno.
 */
static int
connect_to(int sock, const struct sockaddr *address, int len, const char *id, void *arg)
{
	KafkaCluster *c = arg;
	const char	 *why;

	if (!kafka_security_may_log_in(&c->security, id))
	{
		pthread_mutex_lock(&c->lock);
		snprintf(c->refused, sizeof(c->refused),
				 "broker %.60s has no name of Amazon MSK in its region", id);
		strlcpy(c->refused_id, id, sizeof(c->refused_id));
		pthread_mutex_unlock(&c->lock);
		return EACCES;
	}
	if (!services.may_connect(address, c->encrypted, &why))
	{
		char		text[INET6_ADDRSTRLEN] = "?";
		const void *bytes = address->sa_family == AF_INET6 ?
			(const void *) &((const struct sockaddr_in6 *) address)->sin6_addr :
			(const void *) &((const struct sockaddr_in *) address)->sin_addr;

		inet_ntop(address->sa_family, bytes, text, sizeof(text));
		pthread_mutex_lock(&c->lock);
		snprintf(c->refused, sizeof(c->refused),
				 "broker %.40s: address %s is %s, and not in outbox.allowed_networks", id,
				 text, why);
		strlcpy(c->refused_id, id, sizeof(c->refused_id));
		pthread_mutex_unlock(&c->lock);
		return EACCES;
	}
	pthread_mutex_lock(&c->lock);
	if (strcmp(c->refused_id, id) == 0)
		c->refused[0] = '\0'; /* it has another address now */
	pthread_mutex_unlock(&c->lock);
	if (connect(sock, address, len) == 0 || errno == EINPROGRESS)
		return 0;
	return errno;
}

/* ------------------------------------------------------------ threads */

/*
 * librdkafka has a thread and two files for each broker that a broker has named, up to
 * 10,000.  It ends them when the instance ends.  These run in such a thread.
 */
static rd_kafka_resp_err_t
thread_begins(rd_kafka_t *rk, rd_kafka_thread_type_t type, const char *name, void *arg)
{
	KafkaCluster *c = arg;
	uint64		  one = 1;
	bool		  flooded;

	(void) rk;
	(void) name;
	if (type != RD_KAFKA_THREAD_BROKER)
		return RD_KAFKA_RESP_ERR_NO_ERROR;
	pthread_mutex_lock(&c->lock);
	flooded = ++c->threads > BROKERS_MAX && !c->flooded;
	c->flooded = c->flooded || flooded;
	pthread_mutex_unlock(&c->lock);
	if (flooded && write(event_fd, &one, sizeof(one)) < 0)
		return RD_KAFKA_RESP_ERR__FAIL; /* the worker finds out in its next round */
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t
thread_ends(rd_kafka_t *rk, rd_kafka_thread_type_t type, const char *name, void *arg)
{
	KafkaCluster *c = arg;

	(void) rk;
	(void) name;
	pthread_mutex_lock(&c->lock);
	if (type == RD_KAFKA_THREAD_BROKER)
		c->threads--;
	pthread_mutex_unlock(&c->lock);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

/*
 * While librdkafka has records of a partition that it may not send yet, its thread polls
 * without rest, which costs more CPU than everything else.  So it waits here for an
 * answer.  A broker handles the requests of a connection one after the other.  Another
 * one would only wait there, and has more records if it is sent after the answer.  But
 * when the way to the broker takes longer, several are to be under way.
 */
static rd_kafka_resp_err_t
request_sent(rd_kafka_t *rk, int sock, const char *name, int32_t id, int16_t request,
			 int16_t version, int32_t number, size_t size, void *arg)
{
	KafkaCluster *c = arg;
	struct pollfd answer = {.fd = sock, .events = POLLIN};
	int			  slot = kafka_load_slot(id);
	int			  wait;

	(void) rk;
	(void) name;
	(void) version;
	(void) number;
	(void) size;
	if (request != PRODUCE)
		return RD_KAFKA_RESP_ERR_NO_ERROR;
	pthread_mutex_lock(&c->lock);
	c->requests[slot]++;
	c->all_requests++;
	wait = kafka_load_wait(&c->load, slot, c->requests[slot], c->all_requests,
						   (int) pg_atomic_read_u32(&c->produced));
	pthread_mutex_unlock(&c->lock);
	(void) poll(&answer, 1, wait);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* It runs for requests that were given up, too, and even if they were not sent yet. */
static rd_kafka_resp_err_t
request_done(rd_kafka_t *rk, int sock, const char *name, int32_t id, int16_t request,
			 int16_t version, int32_t number, size_t size, int64_t took,
			 rd_kafka_resp_err_t error, void *arg)
{
	KafkaCluster *c = arg;
	int			  slot = kafka_load_slot(id);

	(void) rk;
	(void) sock;
	(void) name;
	(void) version;
	(void) number;
	(void) size;
	(void) took;
	(void) error;
	pthread_mutex_lock(&c->lock);
	if (request == PRODUCE && c->requests[slot] > 0)
	{
		c->requests[slot]--;
		c->all_requests--;
	}
	pthread_mutex_unlock(&c->lock);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t
watch_threads(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *arg, char *words,
			  size_t size)
{
	(void) conf;
	(void) words;
	(void) size;
	rd_kafka_interceptor_add_on_thread_start(rk, "outbox", thread_begins, arg);
	rd_kafka_interceptor_add_on_thread_exit(rk, "outbox", thread_ends, arg);
	rd_kafka_interceptor_add_on_request_sent(rk, "outbox", request_sent, arg);
	rd_kafka_interceptor_add_on_response_received(rk, "outbox", request_done, arg);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

bool
kafka_cluster_is_flooded(KafkaCluster *c, char *reason, size_t size)
{
	bool flooded;

	pthread_mutex_lock(&c->lock);
	flooded = c->flooded;
	pthread_mutex_unlock(&c->lock);
	if (flooded)
		snprintf(reason, size, "its brokers name more than %d brokers", BROKERS_MAX);
	return flooded;
}

/*
 * An error that librdkafka repeats a record for, such as too few replicas, is in no event:
 * only a line for debugging has it.
 */
static void
take_log(const rd_kafka_t *rk, int level, const char *facility, const char *line)
{
	static const char before[] = "encountered error: Broker: ";
	KafkaCluster	 *c = rd_kafka_opaque(rk);
	const char		 *words;
	const char		 *end;

	(void) level;
	if (strcmp(facility, "MSGSET") != 0 || (words = strstr(line, before)) == NULL)
		return;
	words += strlen("encountered error: ");
	end = strstr(words, " (actions ");
	pthread_mutex_lock(&c->lock);
	snprintf(c->trouble, sizeof(c->trouble), "%.*s",
			 end ? (int) (end - words) : (int) strlen(words), words);
	c->trouble_at = kafka_now_ms();
	pthread_mutex_unlock(&c->lock);
}

/* -------------------------------------------------------- making one */

static bool
set(rd_kafka_conf_t *conf, const char *name, const char *value, char *reason, size_t size)
{
	char words[128];

	if (rd_kafka_conf_set(conf, name, value, words, sizeof(words)) == RD_KAFKA_CONF_OK)
		return true;
	snprintf(reason, size, "librdkafka: %s", words);
	return false;
}

static bool
set_number(rd_kafka_conf_t *conf, const char *name, int value, char *reason, size_t size)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", value);
	return set(conf, name, text, reason, size);
}

/* A file that an administrator has named in a setting of outbox. */
static bool
set_file(rd_kafka_conf_t *conf, const char *name, const char *setting, char *reason,
		 size_t size)
{
	const char *file = GetConfigOption(setting, true, false);

	return file == NULL || file[0] == '\0' || set(conf, name, file, reason, size);
}

/*
 * All properties that are ever set, besides those of kafka_security.c.  None comes from
 * SQL but the brokers and the two timeouts.
 */
static bool
configure(rd_kafka_conf_t *conf, const KafkaUrl *url, const KafkaSecurity *security,
		  const OutboxTarget *target, bool one_by_one, char *reason, size_t size)
{
	static const char *const fixed[][2] = {
		{"client.id", "outbox"},
		{"acks", "all"},
		{"enable.idempotence", "true"},
		{"partitioner", "murmur2_random"}, /* as Java's producer */
		{"linger.ms", "0"},
		/* the topic has the limit, and a batch is as large as usual */
		{"message.max.bytes", "100000000"},
		{"batch.size", "1000000"},
		/* a broker says how long its answer is, and so much is allocated */
		{"receive.message.max.bytes", "32000000"},
		{"queue.buffering.max.messages", "1000000"},
		{"queue.buffering.max.kbytes", "2000000"},
		/* a topic that is missing is said soon, and found soon */
		{"topic.metadata.propagation.max.ms", "1000"},
		{"topic.metadata.refresh.interval.ms", "5000"},
		{"topic.metadata.refresh.fast.interval.ms", "250"},
		{"reconnect.backoff.max.ms", "2000"},
		{"statistics.interval.ms", "250"}, /* says how brokers are: brokers.c */
		{"socket.keepalive.enable", "true"},
		/* the end of a large request is not held back until a late acknowledgement */
		{"socket.nagle.disable", "true"},
		/* it is an event then: a broker that wants SASL or TLS only ends the connection */
		{"log.connection.close", "true"},
		{"debug", "msg"}, /* for take_log() */
	};

	for (size_t i = 0; i < lengthof(fixed); i++)
		if (!set(conf, fixed[i][0], fixed[i][1], reason, size))
			return false;
	if (!set(conf, "bootstrap.servers", url->brokers, reason, size) ||
		!kafka_security_configure(conf, security, url->encrypted, reason, size) ||
		!set_number(conf, "message.timeout.ms", Max(target->timeout, 1000), reason,
					size) ||
		!set_number(conf, "socket.connection.setup.timeout.ms",
					Max(target->connect_timeout, 1000), reason, size))
		return false;
	if (one_by_one && !set(conf, "batch.num.messages", "1", reason, size))
		return false;
	if (url->encrypted &&
		(!set(conf, "ssl.endpoint.identification.algorithm", "https", reason, size) ||
		 !set_file(conf, "ssl.ca.location", "outbox.ssl_ca_file", reason, size)))
		return false;
	if (url->encrypted && security->values[KAFKA_CLIENT_KEY] == NULL &&
		(!set_file(conf, "ssl.certificate.location", "outbox.ssl_cert_file", reason,
				   size) ||
		 !set_file(conf, "ssl.key.location", "outbox.ssl_key_file", reason, size)))
		return false;
	rd_kafka_conf_set_connect_cb(conf, connect_to);
	rd_kafka_conf_set_log_cb(conf, take_log);
	rd_kafka_conf_set_events(conf,
							 RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR |
								 RD_KAFKA_EVENT_STATS |
								 RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH);
	return true;
}

static KafkaCluster *
make_cluster(const char *key, const KafkaUrl *url, const KafkaSecurity *security,
			 const OutboxTarget *target, bool one_by_one, char *reason, size_t size)
{
	static const uint64 one = 1;
	KafkaCluster	   *c = calloc(1, sizeof(*c));
	rd_kafka_conf_t	   *conf = rd_kafka_conf_new();
	char				words[128];

	if (c == NULL || !kafka_security_copy(&c->security, security))
	{
		strlcpy(reason, "out of memory", size);
		rd_kafka_conf_destroy(conf);
		free(c);
		return NULL;
	}
	if (!configure(conf, url, security, target, one_by_one, reason, size))
	{
		rd_kafka_conf_destroy(conf);
		kafka_security_clear(&c->security);
		free(c);
		return NULL;
	}
	strlcpy(c->key, key, sizeof(c->key));
	c->encrypted = url->encrypted;
	strlcpy(c->reason, "connecting", sizeof(c->reason));
	c->one_by_one = one_by_one;
	pg_atomic_init_u32(&c->produced, 0);
	pthread_mutex_init(&c->lock, NULL);
	rd_kafka_conf_set_opaque(conf, c);
	rd_kafka_conf_interceptor_add_on_new(conf, "outbox", watch_threads, c);
	c->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, words, sizeof(words));
	if (c->rk == NULL)
	{
		/* It has freed what watch_threads() is in, so rd_kafka_conf_destroy(conf) crashes. */
		snprintf(reason, size, "librdkafka: %s", words);
		pthread_mutex_destroy(&c->lock);
		kafka_security_clear(&c->security);
		free(c);
		return NULL;
	}
	kafka_security_begin(&c->security);
	kafka_security_renew_token(c->rk, &c->security, c->reason, sizeof(c->reason));
	c->queue = rd_kafka_queue_get_main(c->rk);
	rd_kafka_queue_io_event_enable(c->queue, event_fd, &one, sizeof(one));
	dlist_push_tail(&clusters, &c->node);
	return c;
}

KafkaCluster *
kafka_cluster_get(const KafkaUrl *url, const KafkaSecurity *security,
				  const OutboxTarget *target, bool one_by_one, char *reason, size_t size)
{
	char		  key[sizeof(((KafkaCluster *) NULL)->key)];
	KafkaCluster *c;
	dlist_iter	  iter;

	snprintf(key, sizeof(key), "%d %d %d %d %s", one_by_one, url->encrypted,
			 target->timeout, target->connect_timeout, url->brokers);
	dlist_foreach(iter, &clusters)
	{
		c = dlist_container(KafkaCluster, node, iter.cur);
		if (!c->fatal && !c->purged && strcmp(c->key, key) == 0 &&
			kafka_security_equal(&c->security, security))
		{
			c->links++;
			return c;
		}
	}
	c = make_cluster(key, url, security, target, one_by_one, reason, size);
	if (c)
		c->links = 1;
	return c;
}

void
kafka_cluster_put(KafkaCluster *c)
{
	c->links--;
}

/* ---------------------------------------------------------- ending one */

static void *
end_instance(void *arg)
{
	KafkaCluster *c = arg;

	rd_kafka_queue_destroy(c->queue);
	rd_kafka_destroy(c->rk);
	pthread_mutex_destroy(&c->lock);
	kafka_security_clear(&c->security);
	free(c);
	pthread_mutex_lock(&ending_lock);
	ending--;
	pthread_cond_broadcast(&ending_changed);
	pthread_mutex_unlock(&ending_lock);
	return NULL;
}

/*
 * rd_kafka_destroy() waits for threads, and one of them may wait for a name server.  So
 * it has a thread of its own.  Nothing reads the cluster any more.
 */
static void
end_cluster(KafkaCluster *c)
{
	sigset_t  all;
	sigset_t  before;
	pthread_t thread;
	int		  failed;

	dlist_delete(&c->node);
	kafka_security_end(&c->security);
	rd_kafka_queue_io_event_enable(c->queue, -1, NULL, 0);
	pthread_mutex_lock(&ending_lock);
	ending++;
	pthread_mutex_unlock(&ending_lock);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(&thread, NULL, end_instance, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed)
		end_instance(c);
	else
		pthread_detach(thread);
}

void
kafka_clusters_shutdown(void)
{
	struct timespec until;
	int				waited = 0;

	while (!dlist_is_empty(&clusters))
	{
		KafkaCluster *c = dlist_container(KafkaCluster, node, dlist_head_node(&clusters));

		(void) rd_kafka_purge(c->rk,
							  RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT |
								  RD_KAFKA_PURGE_F_NON_BLOCKING);
		end_cluster(c);
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += END_WITHIN;
	pthread_mutex_lock(&ending_lock);
	while (ending > 0 && waited == 0)
		waited = pthread_cond_timedwait(&ending_changed, &ending_lock, &until);
	pthread_mutex_unlock(&ending_lock);
}

/* -------------------------------------------------------------- events */

/*
 * Takes the place in OpenSSL's sources out, "…/rec_layer_s3.c:1602:ssl3_read_bytes ", which
 * librdkafka adds when it writes lines for debugging.
 */
static const char *
without_place(const char *words, char *out, size_t size)
{
	const char *end = words ? strstr(words, " error:") : NULL;
	const char *begin = end;

	while (begin && begin > words && begin[-1] != ' ')
		begin--;
	if (end == NULL || memchr(begin, ':', end - begin) == NULL)
		return words;
	snprintf(out, size, "%.*s%s", (int) (begin - words), words, end + 1);
	return out;
}

static void
take_error(KafkaCluster *c, rd_kafka_event_t *event)
{
	rd_kafka_resp_err_t code = rd_kafka_event_error(event);
	char				shorter[512];
	const char		   *words = without_place(rd_kafka_event_error_string(event), shorter,
											  sizeof(shorter));

	if (rd_kafka_event_error_is_fatal(event)) /* the code is that of its cause */
		c->fatal = true;
	if (code == RD_KAFKA_RESP_ERR__AUTHENTICATION)
		kafka_security_refused(&c->security);
	if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
		c->brokers.up = false;
	else if (words && c->brokers.silent[0] && strstr(words, "imed out"))
		strlcpy(c->reason, c->brokers.silent, sizeof(c->reason)); /* what it waited for */
	else if (words)
	{
		/* without " (after 3 ms in state CONNECT)", which is another each time */
		const char *rest = strstr(words, " (after ");
		int			len = rest ? (int) (rest - words) : (int) strlen(words);

		kafka_security_words(&c->security, code == RD_KAFKA_RESP_ERR__AUTHENTICATION,
							 words, len, c->reason, sizeof(c->reason));
	}
}

static void
take_load(KafkaCluster *c, const char *report)
{
	KafkaLoad load;

	kafka_load_read(&load, report);
	pthread_mutex_lock(&c->lock);
	c->load = load;
	pthread_mutex_unlock(&c->lock);
}

/* A broker that was refused may have another name now, or be gone. */
static void
forget_refused(KafkaCluster *c, const char *report)
{
	char name[sizeof(c->refused_id) + 2];

	pthread_mutex_lock(&c->lock);
	snprintf(name, sizeof(name), "\"%s\"", c->refused_id);
	if (c->refused[0] && strstr(report, name) == NULL)
		c->refused[0] = '\0';
	pthread_mutex_unlock(&c->lock);
}

static void
take_event(KafkaCluster *c, rd_kafka_event_t *event, KafkaReport report)
{
	const rd_kafka_message_t *m;

	switch (rd_kafka_event_type(event))
	{
		case RD_KAFKA_EVENT_DR:
			while ((m = rd_kafka_event_message_next(event)) != NULL)
				report(c, m);
			break;
		case RD_KAFKA_EVENT_ERROR:
			take_error(c, event);
			break;
		case RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH:
			c->security.token_wanted = true; /* kafka_clusters_poll() goes on */
			break;
		case RD_KAFKA_EVENT_STATS:
			kafka_brokers_read(&c->brokers, rd_kafka_event_stats(event));
			take_load(c, rd_kafka_event_stats(event));
			forget_refused(c, rd_kafka_event_stats(event));
			break;
		default:
			break;
	}
}

static void
purge(KafkaCluster *c)
{
	c->purged = true;
	(void) rd_kafka_purge(c->rk,
						  RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT |
							  RD_KAFKA_PURGE_F_NON_BLOCKING);
}

/*
 * What was cancelled, because its tenant is forgotten or its endpoint gone, must not wait
 * in librdkafka until brokers take it.  All that an instance has can be taken from it, and
 * nothing less.  The others get a new one, and are sent again.
 */
static void
give_up_cancelled(KafkaCluster *c)
{
	if (c->purged || c->cancelled == 0 ||
		kafka_now_ms() - c->cancelled_at < CANCELLED_WITHIN)
		return;
	c->fatal = true;
	purge(c);
}

bool
kafka_clusters_poll(KafkaReport report)
{
	dlist_mutable_iter iter;
	bool			   more = false;

	dlist_foreach_modify(iter, &clusters)
	{
		KafkaCluster	 *c = dlist_container(KafkaCluster, node, iter.cur);
		rd_kafka_event_t *event;
		char			  ignored[1];
		int				  n = 0;

		while (n++ < EVENTS_AT_ONCE && (event = rd_kafka_queue_poll(c->queue, 0)) != NULL)
		{
			take_event(c, event, report);
			rd_kafka_event_destroy(event);
		}
		more = more || n > EVENTS_AT_ONCE;
		give_up_cancelled(c);
		kafka_security_renew_token(c->rk, &c->security, c->reason, sizeof(c->reason));
		if (c->links > 0 ||
			(c->wanted > 0 && !kafka_cluster_is_flooded(c, ignored, sizeof(ignored))))
			continue;
		if (pg_atomic_read_u32(&c->produced) == 0)
		{
			/* others have never been given to librdkafka, and end in this poll */
			if (c->wanted == 0)
				end_cluster(c);
		}
		else if (!c->purged)
		{
			/* what is left was cancelled, and its reports are not waited for long */
			purge(c);
		}
	}
	return more;
}

long
kafka_clusters_timeout(void)
{
	int64	   now = kafka_now_ms();
	long	   wait = -1;
	dlist_iter iter;

	dlist_foreach(iter, &clusters)
	{
		KafkaCluster *c = dlist_container(KafkaCluster, node, iter.cur);
		long		  left = c->security.token_wanted ? TOKEN_EVERY : -1;

		if (c->cancelled > 0 && !c->purged)
			left = (long) Min(Max(c->cancelled_at + CANCELLED_WITHIN - now, 0),
							  left < 0 ? CANCELLED_WITHIN : left);
		if (left >= 0 && (wait < 0 || left < wait))
			wait = left;
	}
	return wait;
}

bool
kafka_cluster_is_up(KafkaCluster *c, char *reason, size_t size)
{
	bool refused;
	bool up = c->brokers.up && c->brokers.known;

	if (kafka_security_lacks_keys(&c->security, reason, size))
		return false;
	pthread_mutex_lock(&c->lock);
	refused = c->refused[0] != '\0';
	if (refused)
		strlcpy(reason, c->refused, size);
	pthread_mutex_unlock(&c->lock);
	if (refused)
		return false;
	if (c->brokers.silent[0])
		strlcpy(reason, c->brokers.silent, size);
	else if (!up)
		strlcpy(reason, c->reason, size);
	return up;
}

bool
kafka_cluster_has_failed(KafkaCluster *c, char *reason, size_t size)
{
	char				ignored[1];
	rd_kafka_resp_err_t error = rd_kafka_fatal_error(c->rk, ignored, sizeof(ignored));

	if (error != RD_KAFKA_RESP_ERR_NO_ERROR)
		snprintf(reason, size, "Kafka refuses this producer: %s",
				 rd_kafka_err2str(error));
	return error != RD_KAFKA_RESP_ERR_NO_ERROR;
}

bool
kafka_cluster_trouble(KafkaCluster *c, char *words, size_t size)
{
	bool lately;

	pthread_mutex_lock(&c->lock);
	lately = c->trouble_at > 0 && kafka_now_ms() - c->trouble_at < LATELY;
	if (lately)
		strlcpy(words, c->trouble, size);
	pthread_mutex_unlock(&c->lock);
	return lately;
}

void
kafka_clusters_reload(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &clusters)
	{
		KafkaCluster *c = dlist_container(KafkaCluster, node, iter.cur);

		pthread_mutex_lock(&c->lock);
		c->refused[0] = '\0';
		pthread_mutex_unlock(&c->lock);
	}
}
