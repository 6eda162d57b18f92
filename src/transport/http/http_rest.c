/*
 * http_rest.c
 *	  Owns the requests that rest, because their endpoint owes work.
 *
 * Their handles are paused: libcurl neither reads nor writes, and does not wait for the
 * socket.  Timeouts go on.  The sink for AWS uses the same functions, see OutboxServices.
 *
 * While more of its answer could be read, libcurl 8.9 to 8.14 sets a timer of 0 ms for a
 * paused handle again and again.  That would keep a processor busy, and the endpoint owe
 * the time of it.  So such a timer is put off.
 */
#include "transport/http/http_internal.h"

#define LOOK_EVERY 10 /* ms */
#define LOOK_AT_MAX 256

static OutboxRest resting = {.previous = &resting, .next = &resting};
static int64	  look_at;		  /* ms */
static bool		  worked_in_vain; /* for one that rests, since the timer was run last */

static void (*serves)(int32_t endpoint);
static bool (*endpoint_worked)(int32_t endpoint);
static bool (*endpoint_owes)(int32_t endpoint);

static bool
none_rests(void)
{
	return resting.next == &resting;
}

bool
outbox_http_owes(int32_t endpoint)
{
	return endpoint_owes(endpoint);
}

static void
push(OutboxRest *r)
{
	r->previous = resting.previous;
	r->next = &resting;
	r->previous->next = r->next->previous = r;
	r->rests = true;
}

void
outbox_http_rest_worked(OutboxRest *r, bool connected)
{
	bool owes = endpoint_worked(r->endpoint);

	worked_in_vain = worked_in_vain || r->rests;
	if (!owes || r->rests || !connected)
		return;
	r->paused = true;
	if (curl_easy_pause(r->easy, CURLPAUSE_ALL) != CURLE_OK)
	{
		r->paused = false;
		return;
	}
	r->rested = true;
	push(r);
}

void
outbox_http_rest_leave(OutboxRest *r)
{
	if (!r->rests)
		return;
	r->previous->next = r->next;
	r->next->previous = r->previous;
	r->rests = false;
}

static void
go_on(OutboxRest *r)
{
	outbox_http_rest_leave(r);
	r->paused = false;
	curl_easy_pause(r->easy, CURLPAUSE_CONT);
}

/*
 * A request that ended while it rested has left its handle paused, and older versions of
 * libcurl would not read the answer of the next one.
 */
void
outbox_http_rest_begins(OutboxRest *r)
{
	r->rested = false;
	if (r->paused)
		go_on(r);
}

void
outbox_http_rests_step(void)
{
	OutboxRest *last = resting.previous;
	OutboxRest *r = NULL;
	int64		now = outbox_http_now();

	if (now < look_at)
		return;
	look_at = now + LOOK_EVERY;
	for (int n = 0; r != last && n < LOOK_AT_MAX && !none_rests(); n++)
	{
		r = resting.next;
		outbox_http_rest_leave(r);
		if (endpoint_owes(r->endpoint))
			push(r);
		else
		{
			serves(r->endpoint);
			go_on(r);
		}
	}
}

int64_t
outbox_http_rests_deadline(void)
{
	return none_rests() ? OUTBOX_HTTP_NEVER : look_at;
}

int64_t
outbox_http_rests_timer(int64_t at)
{
	if (worked_in_vain)
		at = Max(at, outbox_http_now() + LOOK_EVERY);
	worked_in_vain = false;
	return at;
}

void
outbox_http_rest_services(OutboxServices *services, bool (*worked)(int32_t endpoint),
						  bool (*owes)(int32_t endpoint))
{
	serves = services->serves;
	endpoint_worked = worked;
	endpoint_owes = owes;
	services->rest_worked = outbox_http_rest_worked;
	services->rest_begins = outbox_http_rest_begins;
	services->rest_leave = outbox_http_rest_leave;
	services->rests_step = outbox_http_rests_step;
	services->rests_deadline = outbox_http_rests_deadline;
	services->rests_timer = outbox_http_rests_timer;
}
