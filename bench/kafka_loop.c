/*
 * kafka_loop.c
 *	  How many records per second librdkafka can bring to a topic on this machine if
 *	  nothing else is done.  The deliveries per second of the worker are compared with
 *	  it.  With -R it reads a topic instead.
 *
 * It sets what outbox_kafka sets for records, but no statistics and no logs, and uses
 * librdkafka as that does: one thread, events instead of callbacks, a fixed number of records
 * in flight.  A record has the headers that the worker's has, with values of the same
 * length, but for the number of the event.
 * The clock starts when the topic has the records that warm up.
 *
 *	  kafka_loop -b BROKERS -t TOPIC -n RECORDS [-w TO WARM UP] [-s BYTES] [-k KEYS]
 *		[-c IN-FLIGHT]
 *	  kafka_loop -R -b BROKERS -t TOPIC -n RECORDS -o FILE
 *
 * Writing, it prints one line of JSON.  Reading, it writes a line for each record: the
 * number in its value {"n": NUMBER, …}, and the real-time clock in nanoseconds.
 */
#define _GNU_SOURCE /* memmem() */
#include <librdkafka/rdkafka.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const char *brokers;
static const char *topic;
static const char *output;
static long		   wanted = 200000;
static long		   to_warm_up;
static long		   size = 100;
static long		   keys;
static long		   most_in_flight = 2000;

static long started;
static long stored;
static long in_flight;

static void
die(const char *what)
{
	fprintf(stderr, "kafka_loop: %s\n", what);
	exit(1);
}

static int64_t
now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void
set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
	char words[512];

	if (rd_kafka_conf_set(conf, name, value, words, sizeof(words)) != RD_KAFKA_CONF_OK)
		die(words);
}

static rd_kafka_t *
make(rd_kafka_type_t type, rd_kafka_conf_t *conf)
{
	char		words[512];
	rd_kafka_t *kafka = rd_kafka_new(type, conf, words, sizeof(words));

	if (kafka == NULL)
		die(words);
	return kafka;
}

/* --------------------------------------------------------------- writing */

static void
produce(rd_kafka_t *kafka)
{
	static char			body[1 << 20];
	char				key[32] = "";
	rd_kafka_headers_t *headers = rd_kafka_headers_new(5);
	rd_kafka_resp_err_t error;

	if (body[0] == '\0')
		memset(body, 'x', (size_t) size);
	if (keys > 0)
		snprintf(key, sizeof(key), "customer-%ld", started % keys);
	rd_kafka_header_add(headers, "content-type", 12, "application/json", 16);
	rd_kafka_header_add(headers, "outbox-id", 9, "0190163d-8694-739b-aea5-966c26f8ad91",
						36);
	rd_kafka_header_add(headers, "outbox-topic", 12, "bench.order", 11);
	rd_kafka_header_add(headers, "outbox-type", 11, "bench.order", 11);
	rd_kafka_header_add(headers, "outbox-attempt", 14, "1", 1);
	error = rd_kafka_producev(kafka, RD_KAFKA_V_TOPIC(topic),
							  RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
							  RD_KAFKA_V_KEY((keys > 0 ? key : NULL), strlen(key)),
							  RD_KAFKA_V_VALUE(body, (size_t) size),
							  RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END);
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR)
		die(rd_kafka_err2str(error));
	started++;
	in_flight++;
}

/* Until so many are stored. */
static void
write_until(rd_kafka_t *kafka, rd_kafka_queue_t *queue, long until)
{
	while (stored < until)
	{
		rd_kafka_event_t		 *event;
		const rd_kafka_message_t *m;

		while (in_flight < most_in_flight && started < until)
			produce(kafka);
		event = rd_kafka_queue_poll(queue, 1000);
		while (event && (m = rd_kafka_event_message_next(event)) != NULL)
		{
			if (m->err)
				die(rd_kafka_err2str(m->err));
			stored++;
			in_flight--;
		}
		rd_kafka_event_destroy(event);
	}
}

static double
cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		(double) (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void
write_topic(void)
{
	static const char *const fixed[][2] = {
		{"acks", "all"},
		{"enable.idempotence", "true"},
		{"partitioner", "murmur2_random"},
		{"linger.ms", "0"},
		{"socket.nagle.disable", "true"},
		{"batch.size", "1000000"},
		{"message.max.bytes", "100000000"},
		{"log_level", "0"},
		{"queue.buffering.max.messages", "1000000"},
		{"message.timeout.ms", "60000"},
	};
	rd_kafka_conf_t	 *conf = rd_kafka_conf_new();
	rd_kafka_t		 *kafka;
	rd_kafka_queue_t *queue;
	int64_t			  begun;
	double			  seconds;
	double			  cpu;

	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
		set(conf, fixed[i][0], fixed[i][1]);
	set(conf, "bootstrap.servers", brokers);
	rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_DR);
	kafka = make(RD_KAFKA_PRODUCER, conf);
	queue = rd_kafka_queue_get_main(kafka);
	write_until(kafka, queue, to_warm_up);
	begun = now_ns(CLOCK_MONOTONIC);
	cpu = cpu_seconds();
	write_until(kafka, queue, to_warm_up + wanted);
	seconds = (double) (now_ns(CLOCK_MONOTONIC) - begun) / 1e9;
	cpu = cpu_seconds() - cpu;
	printf("{\"per_s\": %.1f, \"cpu_us\": %.3f}\n", (double) wanted / seconds,
		   cpu * 1e6 / (double) wanted);
	rd_kafka_queue_destroy(queue);
	rd_kafka_destroy(kafka);
}

/* --------------------------------------------------------------- reading */

static void
read_topic(void)
{
	rd_kafka_conf_t					*conf = rd_kafka_conf_new();
	rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
	rd_kafka_t						*kafka;
	FILE							*out = fopen(output, "w");

	if (out == NULL)
		die("cannot write the output");
	set(conf, "bootstrap.servers", brokers);
	set(conf, "group.id", "bench");
	set(conf, "auto.offset.reset", "earliest");
	kafka = make(RD_KAFKA_CONSUMER, conf);
	rd_kafka_poll_set_consumer(kafka);
	rd_kafka_topic_partition_list_add(topics, topic, RD_KAFKA_PARTITION_UA);
	if (rd_kafka_subscribe(kafka, topics) != RD_KAFKA_RESP_ERR_NO_ERROR)
		die("cannot subscribe");
	rd_kafka_topic_partition_list_destroy(topics);
	for (long n = 0; n < wanted;)
	{
		rd_kafka_message_t *m = rd_kafka_consumer_poll(kafka, 1000);
		const char		   *at;

		if (m == NULL)
			continue;
		if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR)
		{
			/* The value ends with a brace, so that strtol() stops there. */
			at = m->len > 5 ? memmem(m->payload, m->len, "\"n\": ", 5) : NULL;
			fprintf(out, "%ld %lld\n", at ? strtol(at + 5, NULL, 10) : -1L,
					(long long) now_ns(CLOCK_REALTIME));
			fflush(out);
			n++;
		}
		rd_kafka_message_destroy(m);
	}
	fclose(out);
	rd_kafka_consumer_close(kafka);
	rd_kafka_destroy(kafka);
}

int
main(int argc, char **argv)
{
	bool reading = false;
	int	 option;

	while ((option = getopt(argc, argv, "Rb:t:n:w:s:k:c:o:")) != -1)
	{
		switch (option)
		{
			case 'R':
				reading = true;
				break;
			case 'b':
				brokers = optarg;
				break;
			case 't':
				topic = optarg;
				break;
			case 'n':
				wanted = atol(optarg);
				break;
			case 'w':
				to_warm_up = atol(optarg);
				break;
			case 's':
				size = atol(optarg);
				break;
			case 'k':
				keys = atol(optarg);
				break;
			case 'c':
				most_in_flight = atol(optarg);
				break;
			case 'o':
				output = optarg;
				break;
			default:
				die("unknown option");
		}
	}
	if (brokers == NULL || topic == NULL || (reading && output == NULL) || size < 1 ||
		size > 1 << 20)
		die("-b, -t, and with -R also -o; -s of 1 to 1048576");
	if (reading)
		read_topic();
	else
		write_topic();
	return 0;
}
