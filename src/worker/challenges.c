/*
 * challenges.c
 *	  Owns the requests that ask the receiver of an unverified endpoint whether it wants
 *	  events, and which answer is the proof.
 *
 * The address may be a stranger's.  So there are few of these requests, one at a time for
 * a tenant, and they have the limits of any request.
 */
#include "base/outbox.h"

#include <math.h>

#include "base/encoding.h"
#include "base/settings.h"
#include "endpoint/status.h"
#include "format/batch_answer.h"
#include "transport/http/http.h"
#include "worker/busy.h"
#include "worker/challenges.h"
#include "worker/loop.h"
#include "worker/slots.h"
#include "worker/watchdog.h"

/* At a time, of all endpoints, which have a part of the descriptors */
#define ASKED_MAX 256
#define FILES_SHARE 16

/*
 * µs after which an endpoint is looked at again that has to wait for others.  It is longer
 * where so many wait that more looks than these would come in a second.  Looks within some
 * time (µs) are one round of the worker.
 */
#define ASK_LATER (100 * 1000)
#define LOOKS_A_SECOND 1000
#define LOOKS_TOGETHER (USECS_PER_SEC / 20)

/* The wait before another request is so many times that of a delivery. */
#define WAIT_FACTOR 10

#define TOKEN_BYTES 16
#define ANSWER_KB_MAX 4
#define ID_FORMAT "%.8s-%.4s-%.4s-%.4s-%.12s"

/* A request in flight */
typedef struct OutboxAsked
{
	OutboxEndpoint *endpoint;
	int64			version;
	OutboxTransfer *transfer;
	OutboxTarget	target;
	char			token[2 * TOKEN_BYTES + 1];
	char			origin[256];
	char			body[256];
} OutboxAsked;

static int	nasked;
static bool wanted; /* some endpoint lacks a proof, or lacked one */

void
outbox_challenges_note(const OutboxEndpoint *ep)
{
	wanted = wanted || ep->proof != NULL;
}

/* True if its receiver is to be asked, now or later. */
static bool
wants_proof(const OutboxEndpoint *ep)
{
	const OutboxProof *p = ep->proof;

	return outbox_status_is_unverified(ep) && p->asked == NULL && !p->found &&
		p->stored + p->unstored < OUTBOX_CHALLENGES_MAX && !ep->status.paused &&
		!ep->status.disabled && ep->status.held_for == NULL && !ep->member.dropped &&
		!ep->member.recreate && !outbox_status_is_stuck(ep) &&
		ep->link->state == OUTBOX_LINK_UP && outbox_enabled;
}

TimestampTz
outbox_challenges_next_time(const OutboxEndpoint *ep)
{
	return wants_proof(ep) ? ep->proof->again_at : DT_NOEND;
}

/* 0: it is not asked any more. */
static TimestampTz
next_time(const OutboxEndpoint *ep, TimestampTz now)
{
	int n = ep->proof->stored + ep->proof->unstored;

	if (n >= OUTBOX_CHALLENGES_MAX)
		return 0;
	return n == 0 ? now : now + WAIT_FACTOR * outbox_pace_backoff(&ep->pace, n);
}

static void
forget(OutboxAsked *a)
{
	nasked--;
	a->endpoint->proof->asked = NULL;
	if (a->endpoint->tenant)
		a->endpoint->tenant->asked = false;
	pfree(a);
}

void
outbox_challenge_end(OutboxEndpoint *ep)
{
	OutboxAsked *a = ep->proof ? ep->proof->asked : NULL;

	if (a == NULL)
		return;
	outbox_watchdog_enter(ep->id);
	outbox_http_transport.cancel(a->transfer);
	outbox_watchdog_leave();
	forget(a);
}

/* ------------------------------------------------------------------ the answer */

/* True if the answer is the token, or a JSON object that has it as "challenge". */
static bool
repeats(const OutboxAsked *a, const OutboxOutcome *o)
{
	const char *answer = o->answer;
	size_t		len = o->answer_len;
	char		member[sizeof(a->token)];

	if (o->result != OUTBOX_RESULT_DELIVERED || answer == NULL)
		return false;
	while (len > 0 && isspace((unsigned char) answer[len - 1]))
		len--;
	if (len == strlen(a->token) && memcmp(answer, a->token, len) == 0)
		return true;
	return outbox_answer_member(o->answer, o->answer_len, "challenge", member,
								sizeof(member)) &&
		strcmp(member, a->token) == 0;
}

/* The words may be cut off, so the answer that is wanted comes first in them. */
static void
refused(OutboxProof *p, const OutboxOutcome *o)
{
	bool		last = p->stored + p->unstored >= OUTBOX_CHALLENGES_MAX;
	bool		good = o->result <= OUTBOX_RESULT_UNKNOWN;
	const char *until = last ? "resume it to ask again: " : "";

	if (p->challenge == OUTBOX_CHALLENGE_OPTIONS)
		snprintf(p->reason, sizeof(p->reason),
				 "%sanswer OPTIONS with WebHook-Allowed-Origin: %s (%s)", until,
				 outbox_webhook_origin, good ? "it has another one, or none" : o->error);
	else
		snprintf(p->reason, sizeof(p->reason),
				 "%sanswer the challenge with its data.challenge (%s)", until,
				 good ? "the answer is another one" : o->error);
	for (char *c = p->reason; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
}

static void
take_answer(OutboxAsked *a, const OutboxOutcome *o)
{
	OutboxEndpoint *ep = a->endpoint;
	OutboxProof	   *p = ep->proof;
	TimestampTz		now = GetCurrentTimestamp();

	p->rate = 0;
	if (o->result == OUTBOX_RESULT_UNAVAILABLE)
		p->again_at = now + USECS_PER_SEC;
	else
	{
		p->unstored++;
		p->found = p->challenge == OUTBOX_CHALLENGE_OPTIONS ?
			o->result == OUTBOX_RESULT_DELIVERED &&
				outbox_http_allows(a->transfer, &p->rate) :
			repeats(a, o);
		p->again_at = next_time(ep, now);
		if (!p->found)
			refused(p, o);
	}
	forget(a);
	outbox_busy_add(ep);
}

/* As in dispatch.c, the transport calls it from its poll. */
static void
answered(void *arg, const OutboxOutcome *outcome)
{
	int32 endpoint = outbox_watchdog.endpoint;

	outbox_watchdog_leave();
	take_answer(arg, outcome);
	outbox_watchdog_return(endpoint);
}

/* ----------------------------------------------------------------- the request */

/* Returns the problem with the header lines. */
static const char *
make_request(OutboxAsked *a, TimestampTz now)
{
	OutboxEndpoint	   *ep = a->endpoint;
	OutboxRequestConfig settings = ep->config.request;
	OutboxHeaders	   *headers = outbox_http_transport.headers(a->transfer);
	const char		   *c = a->token;
	char				id[OUTBOX_ID_SIZE];
	char				time[OUTBOX_TIMESTAMP_SIZE + 1];

	if (ep->proof->challenge == OUTBOX_CHALLENGE_OPTIONS)
		return outbox_request_handshake_headers(headers, &settings, a->origin,
												(int64) ceil(ep->pace.limits.rate_limit *
															 60));
	settings.format = OUTBOX_FORMAT_STANDARD;
	snprintf(id, sizeof(id), ID_FORMAT, c, c + 8, c + 12, c + 16, c + 20);
	*outbox_put_timestamp(time, now) = '\0';
	snprintf(a->body, sizeof(a->body),
			 "{\"type\":\"outbox.challenge\",\"timestamp\":\"%s\","
			 "\"data\":{\"challenge\":\"%s\"}}",
			 time, a->token);
	return outbox_request_batch_headers(headers, id, &settings,
										ep->proof->stored + ep->proof->unstored + 1,
										timestamptz_to_time_t(now), a->body,
										strlen(a->body));
}

static bool
make_token(char *token)
{
	uint8 bytes[TOKEN_BYTES];

	if (!pg_strong_random(bytes, sizeof(bytes)))
		return false;
	for (int i = 0; i < TOKEN_BYTES; i++)
		snprintf(token + 2 * i, 3, "%02x", bytes[i]);
	return true;
}

static void
ask(OutboxEndpoint *ep, TimestampTz now)
{
	bool		  options = ep->proof->challenge == OUTBOX_CHALLENGE_OPTIONS;
	OutboxAsked	 *a = MemoryContextAllocZero(TopMemoryContext, sizeof(*a));
	OutboxMessage message = {.body = a->body};
	const char	 *problem;

	ep->proof->again_at = now + USECS_PER_SEC;
	a->transfer = outbox_http_transport.acquire();
	if (a->transfer == NULL || !make_token(a->token))
	{
		if (a->transfer)
			outbox_http_transport.release(a->transfer);
		pfree(a);
		return;
	}
	a->endpoint = ep;
	a->version = ep->proof->version;
	a->target = ep->config.target;
	a->target.whole_answer = options ? 0 : ANSWER_KB_MAX;
	strlcpy(a->origin, outbox_webhook_origin, sizeof(a->origin));
	problem = options && a->origin[0] == '\0' ? "outbox.webhook_origin is empty" :
												make_request(a, now);
	if (problem)
	{
		outbox_http_transport.release(a->transfer);
		strlcpy(ep->proof->reason, problem, sizeof(ep->proof->reason));
		pfree(a);
		return;
	}
	message.body_len = strlen(a->body);
	nasked++;
	ep->proof->asked = a;
	if (ep->tenant)
		ep->tenant->asked = true;
	outbox_http_ask(a->transfer, options ? a->origin : NULL, answered);
	outbox_watchdog_enter(ep->id);
	outbox_http_transport.start(a->transfer, &a->target, ep->link->handle, &message, a);
	outbox_watchdog_leave();
}

/* True if all places are taken, or that of its tenant, or it owes work. */
static bool
must_wait(const OutboxEndpoint *ep, TimestampTz now)
{
	return nasked >= Max(Min(ASKED_MAX, outbox_open_files() / FILES_SHARE), 1) ||
		(ep->tenant && ep->tenant->asked) || outbox_slots_owes(ep->id, now);
}

/* Each that waits is behind the others. */
static TimestampTz
look_again_at(TimestampTz now)
{
	static TimestampTz last;

	last = Max(last + USECS_PER_SEC / LOOKS_A_SECOND, now + ASK_LATER);
	return last + LOOKS_TOGETHER - last % LOOKS_TOGETHER;
}

static void
examine(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxProof *p = ep->proof;

	if (p->asked &&
		(p->challenge == OUTBOX_CHALLENGE_NONE || p->asked->version != p->version))
		outbox_challenge_end(ep);
	if (!wants_proof(ep))
		return;
	if (p->again_at == 0)
		p->again_at = next_time(ep, now);
	if (now < p->again_at)
		return;
	if (must_wait(ep, now))
		p->again_at = look_again_at(now);
	else
		ask(ep, now);
}

void
outbox_challenges_step(TimestampTz now)
{
	if (!wanted)
		return;
	for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
		if (ep->proof)
			examine(ep, now);
}
