/*
 * test_auth.c
 *	  Tokens are asked for as rarely as they must be, and a token that the receiver refuses
 *	  again and again is a failure of the receiver (TAP).
 *
 * links: src/transport/http/http_auth.c src/format/header_lines.c src/format/batch_answer.c src/base/json_read.c src/base/names.c src/transport/http/http_pem.c
 */
#include "transport/http/http_internal.h"
#include "base/encoding.h"
#include "base/settings.h"
#include "tap.h"
#include "no_server.h"

#include <stdlib.h>

#define SECOND 1000
#define MINUTE (60 * SECOND)
#define ENDPOINT 7

const char outbox_http_large_key[] = "";

static int64		   now = 1000 * MINUTE; /* ms */
static int			   files = 1000000;
static bool			   owes;
static bool			   lacks;
static OutboxTransfer *fetch; /* in flight */
static void			  *its_link;
static int			   asked; /* for a token */

/* Stands in for the system's clock. */
int
clock_gettime(clockid_t id, struct timespec *t)
{
	(void) id;
	t->tv_sec = now / 1000;
	t->tv_nsec = now % 1000 * 1000000;
	return 0;
}

int
outbox_open_files(void)
{
	return files;
}

bool
outbox_http_owes(int32_t endpoint)
{
	return endpoint == ENDPOINT && owes;
}

size_t
outbox_percent_encode(const char *s, size_t len, char *out)
{
	memcpy(out, s, len);
	return len;
}

const char *
outbox_http_auth_problem(const OutboxTarget *target, OutboxAdvice *advice)
{
	(void) target, (void) advice;
	return NULL;
}

bool
outbox_http_key_is_cheap(struct evp_pkey_st *key)
{
	(void) key;
	return true;
}

static OutboxTransfer *
acquire(void)
{
	return lacks ? NULL : calloc(1, sizeof(OutboxTransfer));
}

static void
release(OutboxTransfer *t)
{
	free(t->headers.buf);
	free(t->headers.start);
	free(t->headers.lines);
	free(t);
}

static void
start(OutboxTransfer *t, const OutboxTarget *target, OutboxLink *link,
	  const OutboxMessage *message, void *delivery)
{
	(void) target, (void) link, (void) message;
	fetch = t;
	its_link = delivery;
	asked++;
}

static void
cancel(OutboxTransfer *t)
{
	fetch = NULL;
	release(t);
}

static const OutboxTransport transport = {.acquire = acquire,
										  .release = release,
										  .start = start,
										  .cancel = cancel};

/* ---------------------------------------------------------------- a world */

static OutboxLink *
open_link(char *scope)
{
	static OutboxOption config[] = {{"token_url", "https://tokens.example/"},
									{"client_id", "me"},
									{"scope", NULL}};
	static OutboxOption credentials[] = {{"client_secret", "secret"}};
	char				reason[128];
	OutboxTarget		target = {.transport = &transport,
								  .url = "https://receiver.example/",
								  .nconfig = 3,
								  .ncredentials = 1,
								  .config = config,
								  .credentials = credentials,
								  .connect_timeout = 1000,
								  .timeout = 1000,
								  .endpoint = ENDPOINT};

	config[2].value = scope;
	return outbox_http_open(&target, reason, sizeof(reason));
}

static bool
is_up(OutboxLink *link)
{
	char reason[128];

	return outbox_http_link_state(link, reason, sizeof(reason)) == OUTBOX_LINK_UP;
}

/* The fetch in flight ends. */
static void
fetched(OutboxResult result, const char *answer)
{
	OutboxTransfer *t = fetch;

	if (t == NULL)
		return;
	outbox_outcome_begin(&t->outcome, result);
	t->outcome.status = result == OUTBOX_RESULT_FAILED ? 503 : 200;
	t->outcome.answer = answer;
	t->outcome.answer_len = answer ? strlen(answer) : 0;
	fetch = NULL;
	t->done(its_link, &t->outcome);
	release(t);
}

static void
got_token(int seconds)
{
	char answer[128];

	snprintf(answer, sizeof(answer), "{\"access_token\":\"a\",\"expires_in\":%d}",
			 seconds);
	fetched(OUTBOX_RESULT_DELIVERED, answer);
}

static OutboxTransfer *
begin(OutboxLink *link)
{
	OutboxTransfer *t = calloc(1, sizeof(*t));

	(void) outbox_http_auth_begin(t, link);
	return t;
}

/* The receiver answers.  Returns true if it counts. */
static bool
counts(OutboxTransfer *t, int status)
{
	bool result;

	outbox_outcome_begin(&t->outcome,
						 status == 200 ? OUTBOX_RESULT_DELIVERED : OUTBOX_RESULT_FAILED);
	t->outcome.status = status;
	outbox_http_auth_answered(t);
	outbox_http_auth_end(t);
	result = t->outcome.result != OUTBOX_RESULT_UNAVAILABLE;
	free(t);
	return result;
}

/* Makes a link with a token that has been good. */
static OutboxLink *
with_token(int seconds)
{
	OutboxLink *link = open_link(NULL);

	(void) is_up(link);
	got_token(seconds);
	(void) counts(begin(link), 200);
	return link;
}

/* ms until the link asks for a token; -1: it does not within two minutes. */
static int64
asks_after(OutboxLink *link)
{
	int64 begun = now;
	int	  before = asked;

	for (; now < begun + 2 * MINUTE; now += 10)
	{
		(void) is_up(link);
		if (asked > before)
			return now - begun;
	}
	return -1;
}

/* ------------------------------------------------------------------ tests */

static void
test_how_often(void)
{
	OutboxLink *link = with_token(1);
	char		text[32];
	int64		after;

	after = asks_after(link);
	snprintf(text, sizeof(text), "%d", (int) after);
	ok(after >= 10 * SECOND, "a token that ends after a second", "is asked for", text);
	got_token(3600);
	owes = true;
	now += 2 * 3600 * SECOND;
	ok(asks_after(link) == -1, "an endpoint that owes work", "asks for none", "");
	owes = false;
	ok(asks_after(link) == 0, "when it has paid", "it does", "");
	outbox_http_close(link);
}

static void
test_failures(void)
{
	OutboxLink *link = open_link(NULL);
	char		text[32];
	int64		after;

	(void) is_up(link);
	for (int i = 0; i < 3; i++)
	{
		fetched(OUTBOX_RESULT_FAILED, NULL);
		after = asks_after(link);
	}
	snprintf(text, sizeof(text), "%d", (int) after);
	ok(after == 4 * SECOND, "a server that fails", "is asked later and later", text);
	for (int i = 0; i < 3; i++)
	{
		fetched(OUTBOX_RESULT_UNAVAILABLE, NULL);
		after = asks_after(link);
	}
	snprintf(text, sizeof(text), "%d", (int) after);
	ok(after == 1 * SECOND, "what was not sent", "is tried again soon", text);
	fetched(OUTBOX_RESULT_UNAVAILABLE, NULL);
	lacks = true;
	now += SECOND;
	(void) is_up(link);
	lacks = false;
	after = asks_after(link);
	snprintf(text, sizeof(text), "%d", (int) after);
	ok(after == 1 * SECOND, "without memory", "too", text);
	fetched(OUTBOX_RESULT_FAILED, NULL);
	after = asks_after(link);
	snprintf(text, sizeof(text), "%d", (int) after);
	ok(after == 8 * SECOND, "the server's failures", "are counted on", text);
	outbox_http_close(link);
}

static void
test_refusals(void)
{
	OutboxLink	   *link = with_token(3600);
	OutboxTransfer *one = begin(link);
	OutboxTransfer *two = begin(link);
	bool			none = false;

	now += MINUTE;
	ok(!counts(one, 401) && !counts(two, 401), "a token ends early",
	   "none of its requests counts", "");
	ok(!is_up(link) && fetch, "then", "another is asked for", "");
	got_token(3600);
	ok(counts(begin(link), 401), "that is refused at once", "it counts", "");
	now += 2 * MINUTE;
	ok(counts(begin(link), 401), "that is refused later", "it counts, too", "");
	ok(!is_up(link) && fetch, "it is no longer new", "and another is asked for", "");
	got_token(3600);
	ok(counts(begin(link), 200), "when one is accepted", "all is well", "");
	now += MINUTE;
	ok(!counts(begin(link), 401), "from then on", "a refusal does not count", "");

	/* Answered when the next token is there already, for ever */
	for (int i = 0; i < 5; i++)
	{
		(void) is_up(link);
		got_token(60);
		one = begin(link);
		now += 2 * MINUTE;
		(void) is_up(link);
		got_token(60);
		none = none || !counts(one, 401);
	}
	ok(!none, "refusals that come when the token was renewed", "count", "");
	outbox_http_close(link);
}

static void
test_followers(void)
{
	OutboxLink	   *first = with_token(3600);
	OutboxTransfer *t = begin(first);
	OutboxLink	   *same = open_link(NULL);
	OutboxLink	   *other;

	now += MINUTE;
	outbox_http_close(first);
	asked = 0;
	ok(is_up(same) && asked == 0, "a link that follows another with the same credentials",
	   "has its token", "");
	ok(!counts(t, 401), "a refusal of the former one", "does not count", "");
	other = open_link("more");
	outbox_http_close(same);
	ok(!is_up(other) && asked == 1, "one with another scope", "asks for its own", "");
	outbox_http_close(other);
}

/* Servers that say nothing. */
static void
test_places(void)
{
	OutboxLink *links[100];

	asked = 0;
	files = 1024;
	for (int i = 0; i < 100; i++)
	{
		links[i] = open_link(NULL);
		(void) is_up(links[i]);
	}
	ok(asked == files / 16, "many token servers that hang", "have a part of the files",
	   "");
	for (int i = 0; i < 100; i++)
		outbox_http_close(links[i]);
}

int
main(void)
{
	test_how_often();
	test_failures();
	test_refusals();
	test_followers();
	test_places();
	return done_testing();
}
