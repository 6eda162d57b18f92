/*
 * cluster.c
 *	  Owns the instances of librdkafka: how they are made and ended, their connections,
 *	  and the state of their brokers.
 *
 * librdkafka has threads, in which threads.c has functions.  Everything else comes as an
 * event, which the worker reads.
 */
#include "cluster.h"
#include "threads.h"

#include <signal.h>
#include <sys/stat.h>

#include "common/hashfn.h"
#include "utils/guc.h"

#define POLL_TIME 10		  /* ms of one poll; webhooks wait meanwhile */
#define END_WITHIN 1		  /* s; before the watchdog ends the process */
#define TOKEN_EVERY 500		  /* ms, while one is wanted and cannot be had */
#define CANCELLED_WITHIN 1000 /* ms in which cancelled records may still be sent */

/*
 * Bytes of a report.  It has about 670 for each partition, and librdkafka keeps up to twice as
 * many beside it.
 */
#define REPORT_LONGEST 64000000

static dlist_head clusters = DLIST_STATIC_INIT(clusters);
static int		  event_fd;
static uint64	  settings_version;

static void (*serves)(int32_t endpoint);

/*
 * librdkafka reads these files when an instance is made, and addresses are judged when it
 * connects.  Another number says that files or settings have changed since then.
 */
static uint64
read_settings_version(void)
{
	const char *networks = GetConfigOption("outbox.allowed_networks", true, false);
	static const char *const settings[] = {"outbox.ssl_ca_file", "outbox.ssl_cert_file",
										   "outbox.ssl_key_file"};
	uint64 version = hash_bytes_extended((const unsigned char *) networks,
										 (int) strlen(networks), 0);

	for (size_t i = 0; i < lengthof(settings); i++)
	{
		const char *file = GetConfigOption(settings[i], true, false);
		struct stat st;
		int64		facts[4] = {0};

		if (file && stat(file, &st) == 0)
		{
			facts[0] = (int64) st.st_ino;
			facts[1] = (int64) st.st_size;
			facts[2] = (int64) st.st_mtim.tv_sec;
			facts[3] = (int64) st.st_mtim.tv_nsec;
		}
		if (file)
			version = hash_bytes_extended((const unsigned char *) file,
										  (int) strlen(file), version);
		version = hash_bytes_extended((const unsigned char *) facts, sizeof(facts),
									  version);
	}
	return version;
}

void
kafka_clusters_init(const OutboxServices *services, int fd)
{
	settings_version = read_settings_version();
	serves = services->serves;
	kafka_threads_init(services, fd);
	event_fd = fd;
}

/* It has no thread any more. */
static void
free_cluster(KafkaCluster *c)
{
	KafkaAccount *account = c->account;

	kafka_security_clear(&c->security);
	kafka_topics_clear(&c->topics);
	free(c);
	kafka_account_ends(account);
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
 * All properties that are ever set, besides the properties of kafka_security.c.  None
 * comes from SQL but the brokers and the two timeouts.
 */
static bool
configure(rd_kafka_conf_t *conf, const KafkaAccount *account, bool one_by_one,
		  char *reason, size_t size)
{
	const KafkaUrl		*url = &account->url;
	const KafkaSecurity *security = &account->security;

	/*
	 * ms for an answer.  Records of a request without one go on to another leader, or again
	 * to the same, which knows them by their sequence.  Metadata of large clusters take long.
	 */
	const int answer_within = Min(Max(KAFKA_TIMEOUT(account) / 3, 10000), 60000);

	static const char *const fixed[][2] = {
		{"client.id", "outbox"},
		{"acks", "all"},
		{"enable.idempotence", "true"},
		{"partitioner", "murmur2_random"}, /* as Java's producer */
		{"linger.ms", "0"},
		/* the topic has the limit, and a batch is as large as usual */
		{"message.max.bytes", "100000000"},
		{"batch.size", "1000000"},
		/* a broker says how long its answer is, and each connection may have so much */
		{"receive.message.max.bytes", "4000000"},
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
	/* A broker would choose figures to be sent to it, and how often. */
	if (rd_kafka_version() >= 0x020500ff &&
		!set(conf, "enable.metrics.push", "false", reason, size))
		return false;
	if (!set(conf, "bootstrap.servers", url->brokers, reason, size) ||
		!kafka_security_configure(conf, security, url->encrypted, reason, size) ||
		!set_number(conf, "message.timeout.ms", KAFKA_TIMEOUT(account), reason, size) ||
		!set_number(conf, "socket.timeout.ms", answer_within, reason, size) ||
		/* for replicas: a leader that waits for them is not silent */
		!set_number(conf, "request.timeout.ms", answer_within / 2, reason, size) ||
		!set_number(conf, "socket.connection.setup.timeout.ms",
					Max(account->connect_timeout, 1000), reason, size))
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
	rd_kafka_conf_set_events(conf,
							 RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR |
								 RD_KAFKA_EVENT_STATS |
								 RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH);
	return true;
}

/* Runs in the worker, while events are read.  Answers that are not throttled say 0. */
static void
take_throttle(rd_kafka_t *rk, const char *name, int32_t id, int wait, void *arg)
{
	KafkaCluster *c = arg;

	c->throttled_until = Max(c->throttled_until, sink_now_ms() + wait);
}

/* False: there is none, and 'reason' says why. */
static bool
make_instance(KafkaCluster *c, char *reason, size_t size)
{
	rd_kafka_conf_t *conf;
	char			 words[128];

	if (!kafka_security_copy(&c->security, &c->account->security))
	{
		strlcpy(reason, "out of memory", size);
		return false;
	}
	conf = rd_kafka_conf_new();
	if (!configure(conf, c->account, c->one_by_one, reason, size))
	{
		rd_kafka_conf_destroy(conf);
		return false;
	}
	rd_kafka_conf_set_opaque(conf, c);
	rd_kafka_conf_set_throttle_cb(conf, take_throttle);
	kafka_threads_watch(conf, c);
	c->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, words, sizeof(words));
	if (c->rk == NULL)
	{
		/*
		 * It has freed the memory that kafka_threads_watch() set, so
		 * rd_kafka_conf_destroy(conf) crashes.
		 */
		snprintf(reason, size, "librdkafka: %s", words);
		kafka_threads_ended(c);
	}
	return c->rk != NULL;
}

static KafkaCluster *
make_cluster(KafkaAccount *account, int32 endpoint, bool one_by_one, char *reason,
			 size_t size)
{
	static const uint64 one = 1;
	KafkaCluster	   *c;

	if (!kafka_account_begins(account, reason, size))
		return NULL;
	c = calloc(1, sizeof(*c));
	if (c == NULL)
	{
		strlcpy(reason, "out of memory", size);
		kafka_account_ends(account);
		return NULL;
	}
	c->account = account;
	c->endpoint = endpoint;
	c->one_by_one = one_by_one;
	strlcpy(c->reason, "connecting", sizeof(c->reason));
	pg_atomic_init_u32(&c->produced, 0);
	if (!make_instance(c, reason, size))
	{
		free_cluster(c);
		return NULL;
	}
	kafka_security_begin(&c->security);
	kafka_security_renew_token(c->rk, &c->security, c->reason, sizeof(c->reason));
	c->queue = rd_kafka_queue_get_main(c->rk);
	rd_kafka_queue_io_event_enable(c->queue, event_fd, &one, sizeof(one));
	dlist_push_tail(&clusters, &c->node);
	c->links = 1;
	return c;
}

KafkaCluster *
kafka_cluster_get(KafkaAccount *account, int32 endpoint, bool one_by_one, char *reason,
				  size_t size)
{
	dlist_iter iter;

	dlist_foreach(iter, &clusters)
	{
		KafkaCluster *c = dlist_container(KafkaCluster, node, iter.cur);

		if (c->account == account && c->one_by_one == one_by_one && !c->fatal &&
			!c->purged && !c->outdated)
		{
			c->links++;
			c->endpoint = endpoint;
			return c;
		}
	}
	return make_cluster(account, endpoint, one_by_one, reason, size);
}

void
kafka_cluster_put(KafkaCluster *c)
{
	c->links--;
}

/*
 * Each topic of an instance costs it.  A topic that links had before does not end it, for it
 * would end the next one, too.
 */
void
kafka_cluster_topic(KafkaCluster *c, const char *name, bool new_to_link)
{
	int before = c->topics.count;
	int added;

	kafka_topics_add(&c->topics, name);
	added = c->topics.count - before;
	kafka_account_topics(c->account, added);
	c->new_topics += new_to_link ? added : 0;
	if (c->new_topics >= KAFKA_TOPICS_OF_INSTANCE)
		c->outdated = true;
}

/*
 * To find a topic by its name, librdkafka takes a lock that its thread holds while it
 * writes a report: 70 ms for a topic of 50,000 partitions.
 */
rd_kafka_topic_t *
kafka_cluster_handle(KafkaCluster *c, const char *topic)
{
	if (c->handle && strcmp(rd_kafka_topic_name(c->handle), topic) == 0)
		return c->handle;
	if (c->handle)
		rd_kafka_topic_destroy(c->handle);
	c->handle = rd_kafka_topic_new(c->rk, topic, NULL);
	return c->handle;
}

/* ---------------------------------------------------------- ending one */

static void *
end_instance(void *arg)
{
	KafkaCluster *c = arg;

	rd_kafka_queue_destroy(c->queue);
	if (c->handle)
		rd_kafka_topic_destroy(c->handle);
	rd_kafka_destroy(c->rk);
	kafka_threads_ended(c);
	free_cluster(c);
	return NULL;
}

/*
 * rd_kafka_destroy() waits for threads, and one of them may wait for a name server, or for
 * ever.  So it has a thread of its own.  Nothing reads the cluster any more, and brokers
 * cannot keep its threads busy.
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
	kafka_threads_cut(c);
	c->account->ended += kafka_threads_cpu(c);
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
	while (!dlist_is_empty(&clusters))
	{
		KafkaCluster *c = dlist_container(KafkaCluster, node, dlist_head_node(&clusters));

		(void) rd_kafka_purge(c->rk,
							  RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT |
								  RD_KAFKA_PURGE_F_NON_BLOCKING);
		end_cluster(c);
	}
	kafka_accounts_wait(END_WITHIN);
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
		strlcpy(c->reason, c->brokers.silent, sizeof(c->reason)); /* the silent broker */
	else if (words)
	{
		/* without " (after 3 ms in state CONNECT)", which is another each time */
		const char *rest = strstr(words, " (after ");
		int			len = rest ? (int) (rest - words) : (int) strlen(words);

		kafka_security_words(&c->security, code == RD_KAFKA_RESP_ERR__AUTHENTICATION,
							 words, len, c->reason, sizeof(c->reason));
	}
}

/*
 * Reads the newest report.  Reports may come faster than they can be read, so older
 * reports are not read.
 */
static void
read_statistics(KafkaCluster *c)
{
	const char *text;
	size_t		len;

	if (c->statistics == NULL)
		return;
	text = rd_kafka_event_stats(c->statistics);
	len = strnlen(text, REPORT_LONGEST);
	c->overfull = len == REPORT_LONGEST;
	len = Min(len, KAFKA_REPORT_MAX);
	kafka_brokers_read(&c->brokers, text, len);
	kafka_threads_report(c, text, len);
	rd_kafka_event_destroy(c->statistics);
	c->statistics = NULL;
}

static void
take_event(KafkaCluster *c, rd_kafka_event_t *event, KafkaReport report)
{
	const rd_kafka_message_t *m;
	int64					  now;

	switch (rd_kafka_event_type(event))
	{
		case RD_KAFKA_EVENT_DR:
			now = sink_now_ms();
			while ((m = rd_kafka_event_message_next(event)) != NULL)
			{
				if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR)
					kafka_account_record(c->account, m->len);
				if (m->err == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT)
					read_statistics(c); /* report() asks whether brokers are up */
				report(c, m, now);
			}
			break;
		case RD_KAFKA_EVENT_ERROR:
			read_statistics(c); /* they are older */
			take_error(c, event);
			break;
		case RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH:
			c->security.token_wanted = true; /* kafka_clusters_poll() goes on */
			break;
		case RD_KAFKA_EVENT_STATS:
			if (c->statistics)
				rd_kafka_event_destroy(c->statistics);
			c->statistics = event;
			return;
		default:
			break;
	}
	rd_kafka_event_destroy(event);
}

/* Returns true if the time ended before the events did. */
static bool
take_events(KafkaCluster *c, KafkaReport report, int64 until)
{
	rd_kafka_event_t *event;
	bool			  more = true;

	while (more && sink_now_ms() <= until)
	{
		event = rd_kafka_queue_poll(c->queue, 0);
		more = event != NULL;
		if (more)
			take_event(c, event, report);
	}
	read_statistics(c);
	return more;
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
 * A record that was cancelled, because its tenant is forgotten or its endpoint gone,
 * must not wait in librdkafka until brokers take it.  Only all records of an instance
 * can be taken from it.  The others get a new instance, and are sent again.
 */
static void
give_up_cancelled(KafkaCluster *c)
{
	if (c->purged || c->cancelled == 0 ||
		sink_now_ms() - c->cancelled_at < CANCELLED_WITHIN)
		return;
	c->fatal = true;
	purge(c);
}

/* True once in a while, if its instances have used more CPU than they may. */
static bool
used_too_much(KafkaAccount *account)
{
	int64	   cpu = 0;
	int64	   topics = 0;
	dlist_iter iter;

	if (!kafka_account_is_due(account))
		return false;
	dlist_foreach(iter, &clusters)
	{
		KafkaCluster *c = dlist_container(KafkaCluster, node, iter.cur);

		if (c->account != account)
			continue;
		cpu += kafka_threads_cpu(c);
		topics += c->topics.count;
	}
	return kafka_account_used_too_much(account, cpu, topics);
}

/* Why all instances of its account are to end.  NULL: they are not. */
static const char *
why_busy(KafkaCluster *c)
{
	if (kafka_threads_say(c, &c->flooded))
		return "its brokers name more than " CppAsString2(KAFKA_BROKERS_MAX) " brokers";
	if (c->overfull || kafka_threads_say(c, &c->crowded))
		return "its topics have too many partitions";
	if (kafka_threads_say(c, &c->talks) || used_too_much(c->account))
		return "its brokers keep threads of librdkafka busy with nothing";
	return NULL;
}

/*
 * Brokers can send meaningless bytes as fast as a thread can read them, and name more
 * brokers than there may be threads, and partitions than there is memory for.  librdkafka
 * has no bound for that.  The instances end then, and their links wait before they get
 * another one.
 */
static void
watch_threads(KafkaCluster *c)
{
	KafkaAccount *account = c->account;
	const char	 *busy = c->busy ? NULL : why_busy(c);
	dlist_iter	  iter;

	if (busy == NULL)
		return;
	dlist_foreach(iter, &clusters)
	{
		c = dlist_container(KafkaCluster, node, iter.cur);
		if (c->account != account || c->busy)
			continue;
		c->busy = busy;
		c->fatal = true;
		kafka_threads_cut(c);
		purge(c);
	}
}

/* The id of the cluster that it has metadata of; false: it is not known. */
static bool
read_id(KafkaCluster *c, char *id, size_t size)
{
	char *found = rd_kafka_clusterid(c->rk, 0);

	if (found == NULL)
		return false;
	strlcpy(id, found, size);
	rd_kafka_mem_free(c->rk, found);
	return true;
}

static void
end_successor(KafkaCluster *c)
{
	if (c->successor)
		kafka_cluster_put(c->successor);
	c->successor = NULL;
}

/*
 * A cluster that was made anew at the same address numbers its producers from the beginning.
 * Records with a number of the former cluster would count there as another producer's,
 * and as stored already.  So once all connections are gone, none is begun until another
 * instance has said that it is the same cluster.  If it is another one, that instance
 * takes the place of this one, before anything was sent.  If none can be made, links make
 * a new one when they may.
 */
static void
check_id(KafkaCluster *c)
{
	char id[sizeof(c->id)];
	char ignored[1];

	if (c->id[0] == '\0')
	{
		if (c->brokers.known && read_id(c, c->id, sizeof(c->id)))
			kafka_threads_has_id(c);
		return;
	}
	if (c->fatal || c->purged || c->outdated || !kafka_threads_say(c, &c->unsure))
	{
		end_successor(c);
		return;
	}
	if (c->successor == NULL)
		c->successor = make_cluster(c->account, c->endpoint, c->one_by_one, ignored,
									sizeof(ignored));
	if (c->successor && !read_id(c->successor, id, sizeof(id)))
		return;
	if (c->successor && strcmp(id, c->id) == 0)
		kafka_threads_same_cluster(c);
	else
	{
		c->fatal = true;
		purge(c);
	}
}

bool
kafka_clusters_poll(KafkaReport report, bool *hostile)
{
	int64	   until = sink_now_ms() + POLL_TIME;
	int		   left = 0;
	bool	   more = false;
	dlist_iter iter;

	*hostile = false;
	dlist_foreach(iter, &clusters) left++;
	for (; left > 0 && sink_now_ms() <= until; left--)
	{
		KafkaCluster *c = dlist_container(KafkaCluster, node,
										  dlist_pop_head_node(&clusters));

		dlist_push_tail(&clusters, &c->node); /* the next poll begins with others */
		serves(c->endpoint);
		more = take_events(c, report, until) || more;
		check_id(c);
		give_up_cancelled(c);
		watch_threads(c);
		*hostile = *hostile || (c->links > 0 && c->busy);
		kafka_security_renew_token(c->rk, &c->security, c->reason, sizeof(c->reason));
		if (c->links > 0 || c->wanted > 0)
			continue;
		if (pg_atomic_read_u32(&c->produced) == 0)
		{
			end_successor(c);
			end_cluster(c);
		}
		else if (!c->purged)
		{
			/*
			 * the records left were cancelled, so their reports are not awaited for
			 * long
			 */
			purge(c);
		}
	}
	return more || left > 0 || *hostile;
}

long
kafka_clusters_timeout(void)
{
	int64	   now = sink_now_ms();
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
	bool up = c->brokers.up && c->brokers.known;

	if (kafka_security_lacks_keys(&c->security, reason, size))
		return false;
	if (kafka_threads_refused(c, reason, size))
		return false;
	if (c->successor)
	{
		if (kafka_cluster_is_up(c->successor, reason, size))
			strlcpy(reason, "connecting", size);
		return false;
	}
	if (c->brokers.silent[0])
		strlcpy(reason, c->brokers.silent, size);
	else if (!up)
		strlcpy(reason, c->reason, size);
	return up;
}

bool
kafka_cluster_was_busy(KafkaCluster *c, char *reason, size_t size)
{
	if (c->busy)
		strlcpy(reason, c->busy, size);
	return c->busy != NULL;
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

void
kafka_clusters_reload(void)
{
	uint64	   before = settings_version;
	dlist_iter iter;

	settings_version = read_settings_version();
	dlist_foreach(iter, &clusters)
	{
		KafkaCluster *c = dlist_container(KafkaCluster, node, iter.cur);

		kafka_threads_allow_again(c);
		c->outdated = c->outdated || settings_version != before;
	}
}
