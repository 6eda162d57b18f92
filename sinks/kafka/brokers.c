/*
 * brokers.c
 *	  Owns the state of brokers that librdkafka's statistics show four times a second:
 *	  whether one is connected, whether one owes an answer, and of how many partitions
 *	  it has still to get records.
 *
 * librdkafka itself waits ten seconds for the first answer of a broker, and up to a minute
 * for others.  A change of leaders may take so long, so it must.  But a view can sooner
 * name the broker that is waited for.
 */
#include "brokers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Records of a partition that librdkafka's idempotent producer sends before an answer */
#define UNANSWERED 5

/* The beginning of each part of a report */
#define BROKER "\"nodeid\":"
#define TOPICS "\"topics\":"
#define PARTITION "\"partition\":"

/* All that is searched ends at 'end', so the time follows the length of the report. */
static const char *
seek(const char *from, const char *end, const char *words)
{
	return from < end ? memmem(from, end - from, words, strlen(words)) : NULL;
}

/*
 * Copies the text behind "NAME":, without quotes, up to 'end'.  librdkafka escapes
 * nothing, and a broker chooses its name: a hostile one can only lie about itself.
 */
static bool
find(const char *from, const char *end, const char *name, char *value, size_t size)
{
	char		pattern[32];
	const char *at;
	size_t		len = 0;

	value[0] = '\0';
	snprintf(pattern, sizeof(pattern), "\"%s\":", name);
	at = seek(from, end, pattern);
	if (at == NULL)
		return false;
	at += strlen(pattern);
	while (at < end && (*at == ' ' || *at == '"'))
		at++;
	while (at < end && len < size - 1 && strchr("\",}", *at) == NULL)
		value[len++] = *at++;
	value[len] = '\0';
	return true;
}

/* -1: there is none. */
static int64_t
number(const char *from, const char *end, const char *name)
{
	char value[24];

	return find(from, end, name, value, sizeof(value)) ? strtoll(value, NULL, 10) : -1;
}

static bool
is_one_of(const char *state, const char *const *states)
{
	for (; *states; states++)
		if (strcmp(state, *states) == 0)
			return true;
	return false;
}

/*
 * Since when the broker owes an answer, in µs.  -1: it does not.  While it is connected,
 * a request may have been sent a moment ago.  So a request counts only if no byte has
 * followed it since the report before.
 */
static int64_t
owes_since(const KafkaBrokers *b, const char *from, const char *end, const char *name,
		   const char *state, int64_t now, int64_t received)
{
	static const char *const beginning[] = {"CONNECT",
											"SSL_HANDSHAKE",
											"APIVERSION_QUERY",
											"AUTH_HANDSHAKE",
											"AUTH_LEGACY",
											"AUTH_REQ",
											NULL};

	if (is_one_of(state, beginning))
		return (int64_t) ((uint64_t) now - (uint64_t) number(from, end, "stateage"));
	if (number(from, end, "waitresp_cnt") <= 0)
		return -1;
	if (strcmp(b->owing, name) == 0 && received <= b->owing_since)
		return b->owing_since;
	return now;
}

void
kafka_brokers_read(KafkaBrokers *b, const char *report, size_t len)
{
	KafkaBrokers found = {.up = false, .known = false};
	int64_t		 now = number(report, report + len, "ts");
	int64_t		 longest = now; /* since when nothing came from 'found.owing' */
	const char	*end = seek(report, report + len, TOPICS);
	const char	*at;
	char		 connected[sizeof(found.owing)];
	int64_t		 connected_for = 0;
	bool		 connecting = false;

	if (end == NULL)
		end = report + len;
	at = seek(report, end, BROKER);
	while (at)
	{
		const char *next = seek(at + 1, end, BROKER);
		const char *stop = next ? next : end;
		char		name[sizeof(found.owing)];
		char		state[24];
		int64_t		idle = number(at, stop, "rxidle");
		int64_t		received = idle < 0 ? 0 : now - idle;
		int64_t		since;

		(void) find(at, stop, "nodename", name, sizeof(name));
		(void) find(at, stop, "state", state, sizeof(state));
		if (strcmp(state, "UP") == 0)
		{
			found.up = true;
			strcpy(connected, name);
			connected_for = number(at, stop, "stateage");
		}
		found.known = found.known || number(at, stop, "nodeid") >= 0;
		since = owes_since(b, at, stop, name, state, now, received);
		if (since >= 0 &&
			(found.owing[0] == '\0' || since < found.owing_since ||
			 (since == found.owing_since && received < longest)))
		{
			strcpy(found.owing, name);
			found.owing_since = since;
			longest = received;
			connecting = strcmp(state, "CONNECT") == 0;
		}
		at = next;
	}
	if (found.owing[0] && now - found.owing_since >= KAFKA_SILENT_AFTER)
		snprintf(found.silent, sizeof(found.silent),
				 connecting ? "no connection to broker %s for more than a second" :
							  "no answer from broker %s for more than a second",
				 found.owing);
	else if (found.up && !found.known && connected_for >= KAFKA_SILENT_AFTER)
		snprintf(found.silent, sizeof(found.silent),
				 "broker %s does not say which brokers there are", connected);
	*b = found;
}

int
kafka_load_slot(int32_t broker)
{
	return (int) ((uint32_t) broker % KAFKA_LOAD_SLOTS);
}

void
kafka_load_read(KafkaLoad *load, const char *report, size_t len)
{
	const char *end = report + len;
	const char *at = seek(report, end, TOPICS);

	memset(load, 0, sizeof(*load));
	load->messages = (int) number(report, end, "msg_cnt");
	at = at ? seek(at, end, PARTITION) : NULL;
	while (at)
	{
		const char *next = seek(at + 1, end, PARTITION);
		const char *stop = next ? next : end;
		int64_t		broker = number(at, stop, "broker");

		if (broker >= 0 &&
			(number(at, stop, "msgq_cnt") > 0 || number(at, stop, "xmit_msgq_cnt") > 0 ||
			 number(at, stop, "msgs_inflight") > 0))
			load->partitions[kafka_load_slot((int32_t) broker)]++;
		at = next;
	}
}

/*
 * There is no word for it.  So it is guessed: as many requests are under way as there are
 * partitions with records, and there are more records than would leave room in so many.
 * The report may be old, so it counts only if there were about as many records: when a
 * burst begins, each partition gets its own at once.
 */
int
kafka_load_wait(const KafkaLoad *load, int slot, int requests, int all_requests,
				int messages)
{
	bool sent = load->partitions[slot] > 0 && requests >= load->partitions[slot] &&
		messages > UNANSWERED * all_requests && messages <= 4 * load->messages;

	return sent ? KAFKA_ANSWER_WITHIN : KAFKA_ANSWER_SOON;
}
