/*
 * outbox_kafka.c
 *	  The sink for Kafka: events become records of a topic.
 *
 * librdkafka batches, repeats and keeps the order of the records that it was given.
 * With its idempotent producer a record that it repeats is stored once.  A delivery
 * ends with the report of its own record, and is never given to librdkafka again before
 * that.
 */
#include "postgres.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/crash_point.h"
#include "base/listed.h"
#include "cluster.h"
#include "fmgr.h"
#include "record.h"
#include "threads.h"
#include "topics.h"
#include "transport/polls.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT const OutboxTransport *outbox_sink(void);

/* ms for which no record of a link was stored, with some in flight: it is stuck */
#define STUCK 1000

/* ms after which a link that was refused is tried again, doubled each time */
#define RETRY_FIRST 1000
#define RETRY_MAX 10000

/*
 * ms after which an instance that could not be made is tried again at most.  Each try
 * leaks the memory that librdkafka was given (make_cluster()).
 */
#define MAKE_MAX 300000

/* ms after which one takes the place of one whose threads were busy, doubled up to MAKE_MAX */
#define BUSY_FIRST 60000

/* ms after a throttle in which a timeout is its fault, and for which a link is slowed down once */
#define THROTTLED_LATELY 5000
#define SLOWED_FOR 1000

/* RD_KAFKA_RESP_ERR__INVALID_DIFFERENT_RECORD, which old headers do not have */
#define INVALID_DIFFERENT_RECORD ((rd_kafka_resp_err_t) -138)

/* One endpoint's way to its topic. */
struct OutboxLink
{
	dlist_node		   node; /* of all links */
	KafkaUrl		   url;
	KafkaRecordOptions options;
	KafkaAccount	  *account;
	int32			   endpoint;
	KafkaTopics		   topics;	/* that its events have led to */
	KafkaCluster	  *cluster; /* NULL: a new one could not be made */
	int				   transfers;
	int64 moved_at;		 /* ms, when a record was stored, or the first one begun */
	bool  closed;		 /* it is freed with its last transfer */
	int64 one_by_one_at; /* ms; not before, after none could be made for single records */
	int64 retry_at;		 /* ms (0: it was not refused) */
	bool  begins;		 /* its producer has failed, and another one has to begin */
	int	  backoff;
	int64 make_at;	 /* ms; not before, after no cluster could be made */
	int64 slowed_at; /* ms, when it was last told to send more slowly */
	int	  make_wait;
	char  reason[128]; /* why it was refused, or no cluster was made */
};

struct OutboxTransfer
{
	dlist_node			node; /* of 'ended' */
	OutboxLink		   *link;
	KafkaCluster	   *cluster;
	void			   *delivery; /* NULL: it was cancelled */
	const char		   *body;
	size_t				body_len;
	char			   *own_body; /* 'body' points to it (NULL: to the message's) */
	const char		   *topic;	  /* the link's, or 'own_topic' */
	rd_kafka_headers_t *headers;  /* until librdkafka has them */
	int64				created_ms;
	int64				started_ms;
	int64				ends_ms;   /* when librdkafka gives it up */
	const char		   *bad_topic; /* why Kafka cannot have this topic */
	int64_t				wait;	   /* ms (0: its topic is not one too many) */
	rd_kafka_resp_err_t error;	   /* of one that could not be produced */
	char				own_topic[KAFKA_TOPIC_MAX + 1];
};

static const char *const config_names[] = {"sasl",	  "region",	   "credentials",
										   "headers", "schema_id", "tombstones",
										   NULL};

static OutboxServices services;
static int			  event_fd = -1;
static bool			  more_events;
static dlist_head	  links = DLIST_STATIC_INIT(links);
static dlist_head	  ended = DLIST_STATIC_INIT(ended);

/* A cluster reports four times a second how its brokers are, so it is polled as often. */
static OutboxPolls polls;

static void
kafka_init(const OutboxServices *given)
{
	services = *given;
	event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (event_fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(), errmsg("could not make an eventfd: %m"),
				 errhint("Raise the limit of open files of the server.")));
	kafka_security_init();
	kafka_clusters_init(given, event_fd);
}

static int
kafka_fd(void)
{
	return event_fd;
}

/* Runs in a session: no instance of librdkafka is made. */
static const char *
kafka_check(const OutboxTarget *target, OutboxAdvice *advice)
{
	KafkaUrl		   url;
	KafkaRecordOptions options;
	const char		  *problem = kafka_url_parse(target->url, &url);

	advice->hint = "Write the URL as kafka[s]://host:port,host:port/topic.";
	if (problem)
		return problem;
	advice->field = "config";
	problem = kafka_record_options(target, &options, &advice->hint);
	return problem ? problem : kafka_security_check(target, &url, advice);
}

static bool
kafka_keeps_credentials(const OutboxTarget *from, const OutboxTarget *to)
{
	KafkaUrl before;
	KafkaUrl after;

	return kafka_url_parse(from->url, &before) == NULL &&
		kafka_url_parse(to->url, &after) == NULL && kafka_url_leads_to(&before, &after) &&
		kafka_security_same_login(from, to);
}

/* --------------------------------------------------------------- links */

static OutboxLink *
kafka_open(const OutboxTarget *target, char *reason, size_t size)
{
	OutboxLink	 *link = calloc(1, sizeof(*link));
	KafkaSecurity security;
	const char	 *hint;
	const char	 *problem = link ? kafka_url_parse(target->url, &link->url) :
								   "out of memory";

	if (problem == NULL)
		problem = kafka_record_options(target, &link->options, &hint);
	if (problem == NULL)
		problem = kafka_security_read(&security, target, &link->url);
	if (problem == NULL)
	{
		link->account = kafka_account_get(&link->url, &security, target);
		problem = link->account ? NULL : "out of memory";
	}
	if (problem == NULL)
		link->cluster = kafka_cluster_get(link->account, target->endpoint, false, reason,
										  size);
	else
		strlcpy(reason, problem, size);
	if (problem || link->cluster == NULL)
	{
		if (link && link->account)
			kafka_account_put(link->account);
		free(link);
		return NULL;
	}
	link->endpoint = target->endpoint;
	dlist_push_tail(&links, &link->node);
	return link;
}

/*
 * One who tries finds out whether the link is up: a record, or an instance that begins.  If
 * a record stays in librdkafka, because its own partition has no leader, another one does
 * so later.
 */
static void
probe_link(OutboxLink *link)
{
	link->backoff = link->backoff ? Min(link->backoff * 2, RETRY_MAX) : RETRY_FIRST;
	link->retry_at = sink_now_ms() + link->backoff;
}

/*
 * After a fatal error of the idempotent producer, when its files of TLS have changed, or
 * when it has had too many topics, a new one takes its place.  Brokers may not let that one
 * begin either, or none can be made.  So it is tried again, but not all the time.
 */
static void
replace_cluster(OutboxLink *link)
{
	int64 now = sink_now_ms();

	if (link->cluster)
	{
		if (kafka_cluster_was_busy(link->cluster, link->reason, sizeof(link->reason)))
		{
			link->make_wait = Min(Max(link->make_wait * 2, BUSY_FIRST), MAKE_MAX);
			link->make_at = now + link->make_wait;
		}
		else if (kafka_cluster_has_failed(link->cluster, link->reason,
										  sizeof(link->reason)))
		{
			probe_link(link);
			link->begins = true;
		}
		kafka_cluster_put(link->cluster);
		link->cluster = NULL;
	}
	if (link->retry_at > now || link->make_at > now)
		return;
	link->cluster = kafka_cluster_get(link->account, link->endpoint, false, link->reason,
									  sizeof(link->reason));
	if (link->cluster == NULL)
	{
		link->make_wait = Min(Max(link->make_wait * 2, RETRY_MAX), MAKE_MAX);
		link->make_at = now + link->make_wait;
	}
}

/* A failed instance may succeed with the new settings. */
static void
kafka_reload(void)
{
	dlist_iter iter;

	kafka_clusters_reload();
	dlist_foreach(iter, &links)
	{
		OutboxLink *link = dlist_container(OutboxLink, node, iter.cur);

		link->make_at = link->make_wait = 0;
		link->one_by_one_at = 0;
	}
}

/* The link leaves a cluster that is not to be used any more, and gets another one if it may. */
static void
check_cluster(OutboxLink *link)
{
	if (link->cluster == NULL || link->cluster->fatal || link->cluster->outdated)
		replace_cluster(link);
}

static OutboxLinkState
kafka_state(OutboxLink *link, char *reason, size_t size)
{
	check_cluster(link);
	if (link->cluster && !kafka_cluster_is_up(link->cluster, reason, size))
	{
		/* one that takes the place of another says nothing yet */
		if (link->retry_at != 0 && strcmp(reason, "connecting") == 0)
			strlcpy(reason, link->reason, size);
		return OUTBOX_LINK_DOWN;
	}
	if (link->cluster && link->begins)
	{
		/* it may fail again, so the wait starts anew with a record that is stored */
		link->begins = false;
		link->retry_at = 0;
	}
	if (link->cluster && link->retry_at == 0)
	{
		if (link->transfers > 0 && link->cluster->throttled_until > sink_now_ms())
			strlcpy(reason, "throttled by its brokers", size);
		if (link->transfers > 0 && sink_now_ms() - link->moved_at >= STUCK)
			(void) kafka_threads_trouble(link->cluster, reason, size);
		return OUTBOX_LINK_UP;
	}
	strlcpy(reason, link->reason, size);
	return link->cluster && link->retry_at <= sink_now_ms() ? OUTBOX_LINK_PROBING :
															  OUTBOX_LINK_DOWN;
}

static void
free_unused_link(OutboxLink *link)
{
	if (!link->closed || link->transfers > 0)
		return;
	if (link->cluster)
		kafka_cluster_put(link->cluster);
	dlist_delete(&link->node);
	kafka_account_put(link->account);
	kafka_topics_clear(&link->topics);
	free(link);
}

static void
kafka_close(OutboxLink *link)
{
	link->closed = true;
	free_unused_link(link);
}

/* The brokers do not let this endpoint write: nothing is lost, it is tried again. */
static void
refuse_link(OutboxLink *link, const char *topic, rd_kafka_resp_err_t error)
{
	int64 now = sink_now_ms();

	bool missing = error == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
		error == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC;

	snprintf(link->reason, sizeof(link->reason), "Kafka refuses topic %.60s: %s", topic,
			 missing ? "it does not exist" : rd_kafka_err2str(error));
	if (link->retry_at != 0)
		return; /* another record of the same try, or the next one, which has begun */
	link->backoff = RETRY_FIRST;
	link->retry_at = now + link->backoff;
}

/* ----------------------------------------------------------- transfers */

static OutboxTransfer *
kafka_acquire(void)
{
	return calloc(1, sizeof(OutboxTransfer));
}

static void
kafka_release(OutboxTransfer *t)
{
	free(t);
}

static void
leave_cluster(OutboxTransfer *t)
{
	if (t->cluster)
		t->cluster->wanted--;
}

/* Librdkafka has no more of it. */
static void
free_transfer(OutboxTransfer *t)
{
	OutboxLink *link = t->link;

	outbox_list_remove(&t->node);
	if (t->headers)
		rd_kafka_headers_destroy(t->headers);
	free(t->own_body);
	kafka_release(t);
	if (link)
	{
		link->transfers--;
		free_unused_link(link);
	}
}

static bool
is_too_large(rd_kafka_resp_err_t error)
{
	return error == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE ||
		error == RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE ||
		error == RD_KAFKA_RESP_ERR_INVALID_RECORD;
}

/*
 * Errors of a batch that another record in it may have caused.  Since 2.2 librdkafka
 * says so of the records that the broker has not named.
 */
static bool
is_of_batch(rd_kafka_resp_err_t error)
{
	return is_too_large(error) || error == RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP ||
		error == INVALID_DIFFERENT_RECORD;
}

/* Errors that say nothing about the event: it waits until an operator has acted. */
static bool
is_refusal(rd_kafka_resp_err_t error)
{
	switch (error)
	{
		case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
		case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
		case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
		case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
		case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
		case RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM:
		case RD_KAFKA_RESP_ERR_ILLEGAL_SASL_STATE:
		case RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION:
		case RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT:
			return true;
		default:
			return false;
	}
}

static void
judge(OutboxTransfer *t, rd_kafka_resp_err_t error, int64 now, OutboxOutcome *o)
{
	char reason[128];
	char trouble[64];

	o->duration = now - t->started_ms;
	o->status = error > 0 ? error : 0;
	if (t->cluster == NULL)
		o->result = OUTBOX_RESULT_UNAVAILABLE;
	else if (t->bad_topic)
	{
		o->result = OUTBOX_RESULT_ABORT;
		o->event_at_fault = true;
		snprintf(o->error, sizeof(o->error), "Kafka cannot have the topic \"%.100s\": %s",
				 t->topic, t->bad_topic);
	}
	else if (t->error == RD_KAFKA_RESP_ERR__QUEUE_FULL)
	{
		o->result = OUTBOX_RESULT_UNAVAILABLE;
		o->lacks = "memory or librdkafka's queue has no room for a record";
	}
	else if (t->wait > 0)
	{
		/* more topics than that may be no fault of its event, so it is tried again */
		o->event_at_fault = true;
		o->retry_after = t->wait / 1000 + 1;
		snprintf(
			o->error, sizeof(o->error),
			"events have led to %d topics within an hour, and \"%.100s\" is another one",
			KAFKA_TOPICS_MAX, t->topic);
	}
	else if (error == RD_KAFKA_RESP_ERR_NO_ERROR)
	{
		o->result = OUTBOX_RESULT_DELIVERED;
		t->link->moved_at = now;
		t->link->retry_at = 0;
		t->link->backoff = 0;
		t->link->make_wait = 0;
	}
	else if (kafka_cluster_has_failed(t->cluster, reason, sizeof(reason)) ||
			 t->cluster->fatal || error == RD_KAFKA_RESP_ERR__PURGE_QUEUE ||
			 error == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT)
	{
		/* the error may be that of the instance, and says nothing of the record */
		o->result = OUTBOX_RESULT_UNAVAILABLE;
		t->cluster->fatal = true;
	}
	else if (is_refusal(error))
	{
		o->result = OUTBOX_RESULT_UNAVAILABLE;
		refuse_link(t->link, t->topic, error);
	}
	else if (error == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT &&
			 (outbox_polls_held_up(&polls, t->ends_ms) ||
			  !kafka_cluster_is_up(t->cluster, reason, sizeof(reason))))
		o->result = OUTBOX_RESULT_UNAVAILABLE;
	else
	{
		/* refused by itself, by brokers or by librdkafka, which has not taken it */
		o->event_at_fault = is_of_batch(error) && (t->cluster->one_by_one || t->error);
		if (o->event_at_fault && is_too_large(error))
			o->result = OUTBOX_RESULT_ABORT;
		if (error == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT)
			o->failure = OUTBOX_FAILURE_TIMEOUT;
		if (error == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT &&
			t->cluster->throttled_until + THROTTLED_LATELY > now)
		{
			/* deliveries in flight together end together */
			o->slow_down = now - t->link->slowed_at >= SLOWED_FOR;
			if (o->slow_down)
				t->link->slowed_at = now;
			snprintf(o->error, sizeof(o->error), "Kafka: throttled by its brokers: %s",
					 rd_kafka_err2str(error));
		}
		else if (error == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT &&
				 kafka_threads_trouble(t->cluster, trouble, sizeof(trouble)))
			snprintf(o->error, sizeof(o->error), "Kafka: %s: %s", rd_kafka_err2str(error),
					 trouble);
		else
			snprintf(o->error, sizeof(o->error), "Kafka: %s", rd_kafka_err2str(error));
	}
}

static void
finish(OutboxTransfer *t, rd_kafka_resp_err_t error, int64 now)
{
	static OutboxOutcome o;
	void				*delivery = t->delivery;

	outbox_outcome_begin(&o, OUTBOX_RESULT_FAILED);
	judge(t, error, now, &o);
	leave_cluster(t);
	free_transfer(t);
	services.done(delivery, &o);
}

/* Gives it to librdkafka.  If that fails, it ends in the next poll. */
static void
produce(OutboxTransfer *t, const char *key, size_t key_len)
{
	rd_kafka_vu_t	  vu[8];
	rd_kafka_error_t *error;

	t->ends_ms = sink_now_ms() + KAFKA_TIMEOUT(t->cluster->account);
	vu[0].vtype = RD_KAFKA_VTYPE_RKT;
	vu[0].u.rkt = kafka_cluster_handle(t->cluster, t->topic);
	vu[1].vtype = RD_KAFKA_VTYPE_MSGFLAGS;
	vu[1].u.i = RD_KAFKA_MSG_F_COPY; /* a cancelled one is still read */
	vu[2].vtype = RD_KAFKA_VTYPE_VALUE;
	vu[2].u.mem.ptr = unconstify(char *, t->body);
	vu[2].u.mem.size = t->body_len;
	vu[3].vtype = RD_KAFKA_VTYPE_KEY;
	vu[3].u.mem.ptr = unconstify(char *, key);
	vu[3].u.mem.size = key_len;
	vu[4].vtype = RD_KAFKA_VTYPE_TIMESTAMP;
	vu[4].u.i64 = t->created_ms;
	vu[5].vtype = RD_KAFKA_VTYPE_OPAQUE;
	vu[5].u.ptr = t;
	vu[6].vtype = RD_KAFKA_VTYPE_HEADERS;
	vu[6].u.headers = t->headers;
	error = vu[0].u.rkt ? rd_kafka_produceva(t->cluster->rk, vu, 7) : NULL;
	if (error || vu[0].u.rkt == NULL)
	{
		t->error = error ? rd_kafka_error_code(error) : rd_kafka_last_error();
		if (error)
			rd_kafka_error_destroy(error);
		outbox_list_add(&ended, &t->node);
		return;
	}
	t->headers = NULL;
	pg_atomic_fetch_add_u32(&t->cluster->produced, 1);
	OUTBOX_KILL_POINT("kafka.sent");
}

/*
 * A record of a batch that was too large goes again as a batch by itself.  That is for
 * another instance, which ends when it has no more of them: in its own the record would
 * have to wait until all others are stored.  False: that cannot be.
 */
static bool
produce_one_by_one(OutboxTransfer *t, const rd_kafka_message_t *m)
{
	OutboxLink	 *link = t->link;
	char		  reason[128];
	KafkaCluster *c;

	if (sink_now_ms() < link->one_by_one_at)
		return false;
	c = kafka_cluster_get(link->account, link->endpoint, true, reason, sizeof(reason));
	if (c == NULL)
	{
		link->one_by_one_at = sink_now_ms() + RETRY_MAX;
		return false;
	}
	if (rd_kafka_message_detach_headers(unconstify(rd_kafka_message_t *, m),
										&t->headers) == RD_KAFKA_RESP_ERR_NO_ERROR)
	{
		t->cluster->wanted--;
		t->cluster = c;
		c->wanted++;
		produce(t, m->key, m->key_len);
	}
	kafka_cluster_put(c);
	return t->cluster == c;
}

/* False: the topic is one too many for the link. */
static bool
has_room_for_topic(OutboxLink *link, OutboxTransfer *t)
{
	uint32 before = link->topics.count;

	if (!kafka_url_has_places(&link->url))
		return true;
	if (!kafka_topics_have_room(&link->topics, t->topic, t->started_ms, &t->wait))
		return false;
	kafka_cluster_topic(link->cluster, t->topic, link->topics.count != before);
	return true;
}

static void
kafka_start(OutboxTransfer *t, const OutboxTarget *target, OutboxLink *link,
			const OutboxMessage *m, void *delivery)
{
	KafkaCluster *c = link->cluster;

	t->link = link;
	t->cluster = c;
	t->delivery = delivery;
	t->created_ms = m->created_ms;
	t->started_ms = sink_now_ms();
	if (link->transfers++ == 0)
		link->moved_at = t->started_ms;
	if (link->retry_at != 0)
		probe_link(link);
	if (c == NULL)
	{
		/* it was up when its state was asked for, and the same poll has found it hostile */
		outbox_list_add(&ended, &t->node);
		return;
	}
	c->wanted++;
	if (kafka_url_has_places(&link->url))
	{
		t->topic = t->own_topic;
		t->bad_topic = kafka_record_topic(&link->url, m, t->own_topic);
	}
	else
		t->topic = link->url.path;
	t->headers = kafka_record_headers(&link->options, m);
	if (!kafka_record_value(&link->options, m, &t->body, &t->body_len, &t->own_body))
	{
		t->error = RD_KAFKA_RESP_ERR__QUEUE_FULL;
		outbox_list_add(&ended, &t->node);
	}
	else if (t->bad_topic || !has_room_for_topic(link, t))
		outbox_list_add(&ended, &t->node);
	else
		produce(t, m->key, m->key_len);
}

static void
kafka_cancel(OutboxTransfer *t)
{
	leave_cluster(t);
	t->delivery = NULL;
	if (outbox_is_listed(&t->node))
		free_transfer(t); /* else its report frees it */
	else
	{
		if (t->cluster->cancelled++ == 0)
			t->cluster->cancelled_at = sink_now_ms();
		t->link->transfers--;
		free_unused_link(t->link);
		t->link = NULL;
	}
}

static void
report(KafkaCluster *c, const rd_kafka_message_t *m, int64 now)
{
	OutboxTransfer *t = m->_private;

	OUTBOX_KILL_POINT("kafka.answered");
	pg_atomic_fetch_sub_u32(&c->produced, 1);
	if (t->delivery == NULL)
	{
		c->cancelled--;
		free_transfer(t);
	}
	else if (!is_of_batch(m->err) || c->one_by_one || !produce_one_by_one(t, m))
		finish(t, m->err, now);
}

static void
kafka_poll(void)
{
	uint64	   ignored;
	int		   n = 0;
	bool	   hostile;
	dlist_iter iter;

	outbox_polls_begin(&polls, sink_now_ms());
	if (read(event_fd, &ignored, sizeof(ignored)) < 0)
		ignored = 0; /* there is nothing to read, which is fine */
	more_events = kafka_clusters_poll(report, &hostile);

	/* The state of an endpoint that rests is not asked for. */
	if (hostile)
		dlist_foreach(iter, &links)
			check_cluster(dlist_container(OutboxLink, node, iter.cur));

	/* Only transfers that are on the list now, because 'done' may start others. */
	dlist_foreach(iter, &ended) n++;
	while (n-- > 0 && !dlist_is_empty(&ended))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_head_node(&ended));

		finish(t, t->error, sink_now_ms());
	}
	polls.due_at = sink_now_ms();
}

static long
kafka_timeout(void)
{
	return more_events || !dlist_is_empty(&ended) ? 0 : kafka_clusters_timeout();
}

static const OutboxTransport kafka_transport = {
	.abi = OUTBOX_TRANSPORT_ABI,
	.size = sizeof(OutboxTransport),
	.name = "kafka",
	.memory = 2048,
	.default_format = "raw",
	.default_in_flight = 1000,
	.default_timeout = 60000, /* a change of leaders takes up to 20 s */
	.attribute_prefix = "ce_",
	.config_names = config_names,
	.credential_names = kafka_credential_names,
	.check = kafka_check,
	.keeps_credentials = kafka_keeps_credentials,
	.init = kafka_init,
	.reload = kafka_reload,
	.fd = kafka_fd,
	.timeout = kafka_timeout,
	.poll = kafka_poll,
	.open = kafka_open,
	.state = kafka_state,
	.close = kafka_close,
	.acquire = kafka_acquire,
	.release = kafka_release,
	.start = kafka_start,
	.cancel = kafka_cancel,
	.shutdown = kafka_clusters_shutdown,
};

const OutboxTransport *
outbox_sink(void)
{
	return &kafka_transport;
}
