/*
 * test_kafka_brokers.c
 *	  A broker that owes an answer is named after more than a second, and no other one.
 *	  Of each broker, the partitions that have records are counted (TAP).
 *
 * links: sinks/kafka/brokers.c
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../sinks/kafka/brokers.h"
#include "tap.h"

#define MS 1000

/* Counts the bytes that are searched.  It stands in for the C library's. */
static size_t searched;

void *
memmem(const void *from, size_t len, const void *words, size_t words_len)
{
	const char *at = from;
	const char *end = at + len - words_len;

	for (; len >= words_len && at <= end; at++)
	{
		searched++;
		if (memcmp(at, words, words_len) == 0)
			return (void *) at;
	}
	return NULL;
}

static KafkaBrokers b;
static char			report[4096];

/* A report begins with its time, and has a part for each broker, as librdkafka's. */
static void
begin(long ms)
{
	snprintf(report, sizeof(report),
			 "{ \"name\": \"rdkafka#producer-1\", \"ts\":%ld, \"brokers\":{ ", ms * MS);
}

static void
broker(const char *name, int id, const char *state, long age, int waiting, long idle)
{
	size_t len = strlen(report);

	snprintf(
		report + len, sizeof(report) - len,
		"\"%s/%d\": { \"name\":\"%s/%d\", \"nodeid\":%d, \"nodename\":\"%s\", \"source\":\"learned\", \"state\":\"%s\", \"stateage\":%ld, \"outbuf_cnt\":0, \"waitresp_cnt\":%d, \"waitresp_msg_cnt\":9, \"txidle\":5, \"rxidle\":%ld, \"rtt\": { \"min\":3 } } , ",
		name, id, name, id, id, name, state, age * MS, waiting,
		idle < 0 ? -1 : idle * MS);
}

static void
says(const char *what, bool up, bool known, const char *silent)
{
	strcat(
		report,
		"}, \"topics\":{ \"t\": { \"state\":\"UP\", \"nodeid\":7, \"waitresp_cnt\":1 } } }");
	kafka_brokers_read(&b, report, strlen(report));
	ok(b.up == up, what, up ? "up" : "not up", "");
	ok(b.known == known, what, known ? "known" : "not known", "");
	ok(strcmp(b.silent, silent) == 0, what, b.silent, silent);
}

static void
connecting(const char *state, const char *silent)
{
	memset(&b, 0, sizeof(b));
	begin(10000);
	broker("b1:9092", -1, state, 1200, 1, -1);
	says(state, false, false, "");
	begin(10250);
	broker("b1:9092", -1, state, 1450, 1, -1);
	says(state, false, false, silent);
}

static void
partition(int number, int broker, int queued, int ready, int in_flight)
{
	size_t len = strlen(report);

	snprintf(
		report + len, sizeof(report) - len,
		"\"%d\": { \"partition\":%d, \"broker\":%d, \"leader\":%d, \"desired\":false, \"unknown\":false, \"msgq_cnt\":%d, \"msgq_bytes\":70, \"xmit_msgq_cnt\":%d, \"xmit_msgq_bytes\":70, \"txmsgs\":9, \"msgs_inflight\": %d } , ",
		number, number, broker, broker, queued, ready, in_flight);
}

static void
load_is(const char *what, int messages, int first, int second)
{
	KafkaLoad load;

	kafka_load_read(&load, report, strlen(report));
	ok(load.messages == messages, what, "", "other messages");
	ok(load.partitions[kafka_load_slot(1)] == first, what, "", "other partitions");
	ok(load.partitions[kafka_load_slot(2)] == second, what, "", "other partitions");
}

static void
loads(void)
{
	snprintf(
		report, sizeof(report),
		"{ \"ts\":5, \"msg_cnt\":17, \"msg_size\":3, \"brokers\":{ \"b/1\": { \"nodeid\":1, \"toppars\":{ \"t-0\": { \"topic\":\"t\", \"partition\":0} } } }, \"topics\":{ \"t\": { \"partitions\":{ ");
	partition(0, 1, 1, 0, 0);
	partition(1, 1, 0, 1, 0);
	partition(2, 1, 0, 0, 1);
	partition(3, 1, 0, 0, 0);
	partition(4, 2, 1, 1, 1);
	partition(5, 2, 0, 0, 0);
	partition(-1, -1, 6, 0, 0);
	load_is("partitions with records", 17, 3, 1);
	partition(6, 2 + KAFKA_LOAD_SLOTS, 1, 0, 0);
	load_is("a broker with a large number", 17, 3, 2);
	strcpy(report, "{ \"msg_cnt\":0, \"topics\":{ } }");
	load_is("no topics", 0, 0, 0);
	report[0] = '\0';
	load_is("an empty report", -1, 0, 0);
	ok(kafka_load_slot(INT32_MIN) >= 0 && kafka_load_slot(-1) < KAFKA_LOAD_SLOTS,
	   "any number has a slot", "", "");
}

/* A report that lacks what is looked for costs what its length is, as others do. */
static void
lengths(void)
{
	static char	 text[200000];
	char		*at = text;
	long		 page = sysconf(_SC_PAGESIZE);
	char		*pages;
	KafkaLoad	 load;
	KafkaBrokers unread = {.up = false};

	for (int i = 0; i < 2000; i++)
		at += sprintf(at, "\"nodeid\":%d, \"rtt\":{ } , ", i);
	searched = 0;
	kafka_brokers_read(&unread, text, at - text);
	ok(unread.known, "brokers of which little is said", "", "not known");
	ok(searched < 10 * (size_t) (at - text), "are not searched for in those after them",
	   "", "often");
	at = text + sprintf(text, "\"topics\":{ ");
	for (int i = 0; i < 2000; i++)
		at += sprintf(at, "\"partition\":%d, \"broker\":1, ", i);
	searched = 0;
	kafka_load_read(&load, text, at - text);
	ok(searched < 10 * (size_t) (at - text), "nor are partitions", "", "often");

	/* A report of which only a part is read: behind it is nothing. */
	pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
				 0);
	ok(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0,
	   "a page that cannot be read", "", "none");
	begin(10000);
	broker("b1:9092", 1, "UP", 1000, 0, 10);
	strcat(report, "}, \"topics\":{ ");
	partition(0, 1, 1, 1, 1);
	for (size_t len = strlen(report);; len--)
	{
		at = pages + page - len;
		memcpy(at, report, len);
		kafka_brokers_read(&unread, at, len);
		kafka_load_read(&load, at, len);
		if (len == strlen(report))
			ok(unread.up && load.partitions[kafka_load_slot(1)] == 1,
			   "what ends with the part that is read", "", "is not read");
		if (len == 0)
			break;
	}
	ok(!unread.up, "any part can be read", "", "");
}

static void
waits(const char *what, const KafkaLoad *load, int slot, int requests, int all_requests,
	  int messages, bool long_enough)
{
	int expected = long_enough ? KAFKA_ANSWER_WITHIN : KAFKA_ANSWER_SOON;

	ok(kafka_load_wait(load, slot, requests, all_requests, messages) == expected, what,
	   "", "");
}

static void
waiting(void)
{
	KafkaLoad load = {.messages = 100};

	ok(KAFKA_ANSWER_SOON > 0, "a thread always waits for an answer", "", "");
	load.partitions[1] = 3;
	load.partitions[2] = 1;
	waits("each partition has a request under way", &load, 1, 3, 4, 100, true);
	waits("one has none", &load, 1, 2, 4, 100, false);
	waits("a broker of which nothing is known", &load, 0, 1, 4, 100, false);
	waits("few records: there may be room", &load, 1, 3, 4, 20, false);
	waits("one more: there is none", &load, 1, 3, 4, 21, true);
	waits("about as many as in the report", &load, 1, 3, 4, 400, true);
	waits("a burst since the report", &load, 1, 3, 4, 401, false);
}

int
main(void)
{
	const char *none = "no answer from broker b1:9092 for more than a second";

	connecting("CONNECT", "no connection to broker b1:9092 for more than a second");
	connecting("SSL_HANDSHAKE", none);
	connecting("APIVERSION_QUERY", none);
	connecting("AUTH_REQ", none);
	connecting("TRY_CONNECT", "");
	connecting("INIT", "");

	/* One that was connected, and then says nothing */
	memset(&b, 0, sizeof(b));
	for (int ms = 0; ms <= 2000; ms += 250)
	{
		begin(10000 + ms);
		broker("b1:9092", -1, "UP", ms, 1, ms);
		says("silent after its first answer", true, false, ms < 1250 ? "" : none);
	}

	/* What it answers in the end */
	begin(12250);
	broker("b1:9092", 1, "UP", 2250, 1, 100);
	says("an answer", true, true, "");

	/* One that answers, and does not say what is asked */
	memset(&b, 0, sizeof(b));
	for (int ms = 0; ms <= 2000; ms += 250)
	{
		begin(10000 + ms);
		broker("b1:9092", -1, "UP", ms, 0, 10);
		says("no brokers", true, false,
			 ms < 1250 ? "" : "broker b1:9092 does not say which brokers there are");
	}

	/* One that is busy owes something at each moment, and answers all of it */
	memset(&b, 0, sizeof(b));
	for (int ms = 0; ms <= 5000; ms += 250)
	{
		begin(10000 + ms);
		broker("b1:9092", 1, "UP", ms, 3, 2);
		says("busy", true, true, "");
	}

	/* One that had nothing to do for long, and has been asked just now */
	memset(&b, 0, sizeof(b));
	begin(90000);
	broker("b1:9092", 1, "UP", 60000, 1, 60000);
	says("idle before", true, true, "");
	begin(90250);
	broker("b1:9092", 1, "UP", 60250, 0, 200);
	says("idle before", true, true, "");

	/* One of three is silent, the others are busy */
	memset(&b, 0, sizeof(b));
	for (int ms = 0; ms <= 2000; ms += 250)
	{
		begin(10000 + ms);
		broker("b0:9092", 0, "UP", ms, 3, 1);
		broker("b1:9092", 1, "UP", ms, 5, ms + 40);
		broker("b2:9092", 2, "UP", ms, 3, 30);
		says("one of three", true, true, ms < 1250 ? "" : none);
	}

	/* Names that are made to mislead */
	memset(&b, 0, sizeof(b));
	begin(10000);
	broker("\",\"nodeid\":5,\"state\":\"UP", 1, "INIT", 0, 0, -1);
	broker("", 2, "DOWN", 0, 0, -1);
	strcat(report, "\"nodeid\":");
	kafka_brokers_read(&b, report, strlen(report));
	ok(b.silent[0] == '\0', "a name that is made to mislead", "", b.silent);
	kafka_brokers_read(&b, "", 0);
	ok(!b.up && !b.known && b.silent[0] == '\0', "an empty report", "", b.silent);
	loads();
	lengths();
	waiting();
	return done_testing();
}
