/*
 * threads.c
 *	  Owns the functions that run in threads of librdkafka, and the data that these
 *	  leave for the worker.
 *
 * librdkafka blocks all signals in its threads.  A function there calls no function of
 * PostgreSQL, and shares with the worker only the data that 'lock' protects.
 */
#include "threads.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define UNASKED_MAX 10000 /* answers to nothing; a few come after a timeout */
#define LATELY 3000		  /* ms; librdkafka tries again after 100 ms, or up to 1 s */
#define PRODUCE 0		  /* the numbers of these requests in Kafka's protocol */
#define METADATA 3

/*
 * Bytes of metadata between two reports.  librdkafka has one thread for both, and a kB of
 * memory for each partition that 26 bytes name.  It may read metadata for seconds before it
 * writes a report.
 */
#define METADATA_MAX 8000000

/* ms; librdkafka tries again within two seconds */
#define SAME_FOR 3000

/*
 * Added to the niceness of the process.  Brokers decide how much its threads have to do,
 * and the worker's own loop serves all other endpoints.
 */
#define THREAD_NICE 5

static OutboxServices services;
static int			  event_fd;

void
kafka_threads_init(const OutboxServices *given, int fd)
{
	services = *given;
	event_fd = fd;
}

/* ---------------------------------------- functions in threads of librdkafka */

static void
tell_worker(void)
{
	uint64 one = 1;

	/* If it fails, the worker finds out in its next round. */
	while (write(event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static bool
is_connected(int sock)
{
	struct sockaddr_storage peer;
	socklen_t				len = sizeof(peer);

	return getpeername(sock, (struct sockaddr *) &peer, &len) == 0;
}

/*
 * Takes a connection that begins.  False: there are too many, or no other one is left.  Then
 * it may be to another cluster, which the worker has to find out first.
 */
static bool
begin_connection(KafkaCluster *c, int sock)
{
	int	 place = -1;
	bool sure;
	bool begins;

	pthread_mutex_lock(&c->lock);
	if (c->cut)
	{
		pthread_mutex_unlock(&c->lock);
		return false;
	}
	sure = !c->has_id || sink_now_ms() < c->same_until;
	for (int i = 0; i < KAFKA_SOCKETS; i++)
	{
		if (c->sockets[i] == 0 && place < 0)
			place = i;
		sure = sure || (c->sockets[i] != 0 && is_connected(c->sockets[i]));
	}
	begins = sure && place >= 0;
	if (begins)
	{
		c->same_until = 0; /* the next one relies on this one */
		c->sockets[place] = sock;
	}
	c->unsure = !sure;
	pthread_mutex_unlock(&c->lock);
	if (!sure)
		tell_worker();
	return begins;
}

/* Runs in a thread of librdkafka, for each of its sockets. */
static int
end_connection(int sock, void *arg)
{
	KafkaCluster *c = arg;

	pthread_mutex_lock(&c->lock);
	for (int i = 0; i < KAFKA_SOCKETS; i++)
		if (c->sockets[i] == sock)
			c->sockets[i] = 0;
	pthread_mutex_unlock(&c->lock);
	return close(sock);
}

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
	if (!services.may_connect(address, c->account->url.encrypted, &why))
	{
		char text[INET6_ADDRSTRLEN];

		sink_address_text(address, text, sizeof(text));
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
	if (!begin_connection(c, sock))
		return ECONNABORTED;
	if (connect(sock, address, len) == 0 || errno == EINPROGRESS)
		return 0;
	return errno;
}

/* ns.  0: the thread has ended */
static int64
cpu_of(clockid_t clock)
{
	struct timespec used;

	if (clock_gettime(clock, &used) != 0)
		return 0;
	return (int64) used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Takes the clock of this thread, or gives it back.  'lock' is held. */
static void
count_thread(KafkaCluster *c, bool begins)
{
	clockid_t clock;

	if (pthread_getcpuclockid(pthread_self(), &clock) != 0)
		return;
	if (begins)
	{
		if (c->nclocks < KAFKA_THREADS)
			c->clocks[c->nclocks++] = clock;
		return;
	}
	for (int i = 0; i < c->nclocks; i++)
		if (c->clocks[i] == clock)
		{
			c->spent_before += cpu_of(clock);
			c->clocks[i] = c->clocks[--c->nclocks];
			return;
		}
}

/*
 * librdkafka has a thread and two files for each broker that a broker has named, up to
 * 10,000.  It ends them when the instance ends.  These run in such a thread.
 */
static rd_kafka_resp_err_t
thread_begins(rd_kafka_t *rk, rd_kafka_thread_type_t type, const char *name, void *arg)
{
	KafkaCluster *c = arg;
	bool		  flooded;

	services.thread_serves(&c->endpoint);
	(void) setpriority(PRIO_PROCESS, 0,
					   getpriority(PRIO_PROCESS, getpid()) + THREAD_NICE);
	pthread_mutex_lock(&c->lock);
	count_thread(c, true);
	c->threads += type == RD_KAFKA_THREAD_BROKER;
	flooded = c->threads > KAFKA_BROKERS_MAX && !c->flooded;
	c->flooded = c->flooded || flooded;
	pthread_mutex_unlock(&c->lock);
	if (flooded)
		tell_worker();
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t
thread_ends(rd_kafka_t *rk, rd_kafka_thread_type_t type, const char *name, void *arg)
{
	KafkaCluster *c = arg;

	pthread_mutex_lock(&c->lock);
	count_thread(c, false);
	c->threads -= type == RD_KAFKA_THREAD_BROKER;
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
	bool		  too_many;
	bool		  crowds;

	pthread_mutex_lock(&c->lock);
	too_many = error == RD_KAFKA_RESP_ERR__NOENT && ++c->unasked == UNASKED_MAX;
	c->talks = c->talks || too_many;
	if (request == METADATA && error == RD_KAFKA_RESP_ERR_NO_ERROR)
		c->metadata += (int64) size;
	crowds = c->metadata > METADATA_MAX && !c->crowded;
	c->crowded = c->crowded || crowds;
	if (request == PRODUCE && c->requests[slot] > 0)
	{
		c->requests[slot]--;
		c->all_requests--;
	}
	pthread_mutex_unlock(&c->lock);
	if (crowds)
		kafka_threads_cut(c);
	if (too_many || crowds)
		tell_worker();
	return RD_KAFKA_RESP_ERR_NO_ERROR;
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

	if (strcmp(facility, "MSGSET") != 0 || (words = strstr(line, before)) == NULL)
		return;
	words += strlen("encountered error: ");
	end = strstr(words, " (actions ");
	pthread_mutex_lock(&c->lock);
	snprintf(c->trouble, sizeof(c->trouble), "%.*s",
			 end ? (int) (end - words) : (int) strlen(words), words);
	c->trouble_at = sink_now_ms();
	pthread_mutex_unlock(&c->lock);
}

static rd_kafka_resp_err_t
watch_threads(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *arg, char *words,
			  size_t size)
{
	rd_kafka_interceptor_add_on_thread_start(rk, "outbox", thread_begins, arg);
	rd_kafka_interceptor_add_on_thread_exit(rk, "outbox", thread_ends, arg);
	rd_kafka_interceptor_add_on_request_sent(rk, "outbox", request_sent, arg);
	rd_kafka_interceptor_add_on_response_received(rk, "outbox", request_done, arg);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

void
kafka_threads_watch(rd_kafka_conf_t *conf, KafkaCluster *c)
{
	pthread_mutex_init(&c->lock, NULL);
	rd_kafka_conf_set_connect_cb(conf, connect_to);
	rd_kafka_conf_set_closesocket_cb(conf, end_connection);
	rd_kafka_conf_set_log_cb(conf, take_log);
	rd_kafka_conf_interceptor_add_on_new(conf, "outbox", watch_threads, c);
}

void
kafka_threads_ended(KafkaCluster *c)
{
	pthread_mutex_destroy(&c->lock);
}

/* ------------------------------------------------ functions that the worker calls */

bool
kafka_threads_say(KafkaCluster *c, const bool *flag)
{
	bool says;

	pthread_mutex_lock(&c->lock);
	says = *flag;
	pthread_mutex_unlock(&c->lock);
	return says;
}

int64
kafka_threads_cpu(KafkaCluster *c)
{
	int64 spent;

	pthread_mutex_lock(&c->lock);
	spent = c->spent_before;
	for (int i = 0; i < c->nclocks; i++)
		spent += cpu_of(c->clocks[i]);
	pthread_mutex_unlock(&c->lock);
	return spent;
}

void
kafka_threads_cut(KafkaCluster *c)
{
	pthread_mutex_lock(&c->lock);
	c->cut = true;
	for (int i = 0; i < KAFKA_SOCKETS; i++)
		if (c->sockets[i] != 0)
			(void) shutdown(c->sockets[i], SHUT_RDWR);
	pthread_mutex_unlock(&c->lock);
}

bool
kafka_threads_trouble(KafkaCluster *c, char *words, size_t size)
{
	bool lately;

	pthread_mutex_lock(&c->lock);
	lately = c->trouble_at > 0 && sink_now_ms() - c->trouble_at < LATELY;
	if (lately)
		strlcpy(words, c->trouble, size);
	pthread_mutex_unlock(&c->lock);
	return lately;
}

bool
kafka_threads_refused(KafkaCluster *c, char *reason, size_t size)
{
	bool refused;

	pthread_mutex_lock(&c->lock);
	refused = c->refused[0] != '\0';
	if (refused)
		strlcpy(reason, c->refused, size);
	pthread_mutex_unlock(&c->lock);
	return refused;
}

void
kafka_threads_has_id(KafkaCluster *c)
{
	pthread_mutex_lock(&c->lock);
	c->has_id = true;
	pthread_mutex_unlock(&c->lock);
}

void
kafka_threads_same_cluster(KafkaCluster *c)
{
	pthread_mutex_lock(&c->lock);
	c->unsure = false;
	c->same_until = sink_now_ms() + SAME_FOR;
	pthread_mutex_unlock(&c->lock);
}

void
kafka_threads_allow_again(KafkaCluster *c)
{
	pthread_mutex_lock(&c->lock);
	c->refused[0] = '\0';
	pthread_mutex_unlock(&c->lock);
}

static void
take_load(KafkaCluster *c, const char *report, size_t len)
{
	KafkaLoad load;

	kafka_load_read(&load, report, len);
	pthread_mutex_lock(&c->lock);
	c->load = load;
	c->metadata = 0;
	pthread_mutex_unlock(&c->lock);
}

/* A broker that was refused may have another name now, or be gone. */
static void
forget_refused(KafkaCluster *c, const char *report, size_t len)
{
	char name[sizeof(c->refused_id) + 2];

	pthread_mutex_lock(&c->lock);
	snprintf(name, sizeof(name), "\"%s\"", c->refused_id);
	if (c->refused[0] && memmem(report, len, name, strlen(name)) == NULL)
		c->refused[0] = '\0';
	pthread_mutex_unlock(&c->lock);
}

void
kafka_threads_report(KafkaCluster *c, const char *report, size_t len)
{
	take_load(c, report, len);
	forget_refused(c, report, len);
}
