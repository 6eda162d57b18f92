/*
 * outbox_aws.c
 *	  The sink for SQS, SNS, EventBridge and Kinesis of AWS.
 *
 * Events of an endpoint wait on its link until a request may take them.  A request has
 * as many as the service allows.  Each delivery ends with the result of its own entry
 * in the answer.  A failure that says nothing about an event (rights, names, the
 * network) takes the link down.
 */
#include "postgres.h"

#include "aws_entry.h"
#include "aws_link.h"
#include "aws_role.h"
#include "aws_signer.h"
#include "base/listed.h"
#include "fmgr.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT const OutboxTransport *outbox_sink(void);

/*
 * Requests of one link in flight.  Above the first number, only full requests begin.
 * So a service that answers slowly gets fewer and larger requests.
 */
#define REQUESTS_EAGER 4
#define REQUESTS_MAX 32

/* The owner of an AwsRequest: the deliveries of the request. */
typedef struct Batch
{
	OutboxLink *link;
	dlist_head	transfers; /* in the order of their entries */
	int			n;
} Batch;

static OutboxServices services;

/* ----------------------------------------------------------- transfers */

static OutboxTransfer *
aws_acquire(void)
{
	return calloc(1, sizeof(OutboxTransfer));
}

static void
aws_release(OutboxTransfer *t)
{
	free(t);
}

/* It is on no list. */
static void
free_transfer(OutboxTransfer *t)
{
	OutboxLink *link = t->link;

	aws_text_free(&t->entry);
	aws_release(t);
	link->transfers--;
	aws_link_free_unused(link);
}

static void
aws_start(OutboxTransfer *t, const OutboxTarget *target, OutboxLink *link,
		  const OutboxMessage *m, void *delivery)
{
	t->link = link;
	t->delivery = delivery;
	t->started_ms = sink_now_ms();
	link->transfers++;
	t->problem = aws_entry_write(&link->target, link->source, m, &t->entry,
								 &t->entry_bytes);
	t->unavailable = t->entry.failed;
	if (t->problem || t->unavailable)
		dlist_push_tail(&aws_ended, &t->node);
	else
	{
		dlist_push_tail(&link->waiting, &t->node);
		link->nwaiting++;
		aws_link_make_due(link);
	}
}

static void
aws_cancel(OutboxTransfer *t)
{
	t->delivery = NULL;
	if (t->sent)
		return; /* the end of its request frees it */
	if (t->problem == NULL && !t->unavailable && !t->alone)
		t->link->nwaiting--;
	dlist_delete(&t->node);
	free_transfer(t);
}

/* ------------------------------------------------------------ outcomes */

static void
report(OutboxTransfer *t, OutboxOutcome *o)
{
	void *delivery = t->delivery;

	o->duration = sink_now_ms() - t->started_ms;
	/* Each request has a row: the last one by this outcome, unless that is none. */
	o->lost = t->requests - (o->result != OUTBOX_RESULT_UNAVAILABLE && t->requests > 0);
	if (o->lost_words == NULL)
		o->lost_words = o->result == OUTBOX_RESULT_UNAVAILABLE ?
			"the service did not take it, and it is sent again" :
			t->alone ?
			"its request was refused, and it was sent again alone" :
			"the connection was closed before the answer, and it was sent again";
	free_transfer(t);
	if (delivery)
		services.done(delivery, o);
}

static OutboxOutcome *
new_outcome(OutboxResult result, int status)
{
	static OutboxOutcome o;

	outbox_outcome_begin(&o, result);
	o.status = status;
	return &o;
}

/* One that was not sent. */
static void
end_unsent(OutboxTransfer *t)
{
	OutboxOutcome *o = new_outcome(t->unavailable ? OUTBOX_RESULT_UNAVAILABLE :
													OUTBOX_RESULT_ABORT,
								   0);

	if (t->unavailable && t->entry.failed)
		aws_link_down(t->link, "out of memory");
	o->event_at_fault = t->problem != NULL;
	if (t->problem)
		snprintf(o->error, sizeof(o->error), "%s cannot take this event: %s",
				 t->link->target.facts->label, t->problem);
	report(t, o);
}

static const OutboxResult results[] = {
	[AWS_STORED] = OUTBOX_RESULT_DELIVERED, [AWS_REFUSED] = OUTBOX_RESULT_UNAVAILABLE,
	[AWS_BUSY] = OUTBOX_RESULT_FAILED,		[AWS_TROUBLE] = OUTBOX_RESULT_UNAVAILABLE,
	[AWS_BAD_EVENT] = OUTBOX_RESULT_ABORT,	[AWS_FAILED] = OUTBOX_RESULT_FAILED,
};

/* slow_down: it is the first of its request that may say so. */
static void
end_entry(OutboxTransfer *t, int status, const AwsEntryAnswer *e, bool slow_down)
{
	const AwsTarget *target = &t->link->target;
	AwsMeaning		 meaning = aws_entry_meaning(target, e);
	OutboxOutcome	*o = new_outcome(results[meaning], status);
	char			 words[AWS_SAYING];

	aws_say(e->seen ? e->code : "its answer lacks the entry", e->words, words);
	o->slow_down = meaning == AWS_BUSY && slow_down;
	o->event_at_fault = meaning == AWS_BAD_EVENT;
	if (meaning != AWS_STORED)
		snprintf(o->error, sizeof(o->error), "%s: %s", target->facts->label,
				 aws_link_words(t->link, words));
	report(t, o);
}

/* Entries may be refused one by one, for example by a key of KMS. */
static void
judge_link(OutboxLink *link, const AwsAnswer *a)
{
	char words[AWS_SAYING];

	for (int i = 0; i < a->n; i++)
		if (aws_entry_meaning(&link->target, &a->entries[i]) == AWS_REFUSED)
		{
			aws_say(a->entries[i].code, a->entries[i].words, words);
			aws_link_down(link, words);
			return;
		}
	aws_link_up(link);
}

/* The answer is an error, or there is none.  Nothing says anything of one entry. */
static void
end_together(Batch *b, const AwsEnd *end, const AwsAnswer *a, AwsMeaning meaning)
{
	OutboxLink *link = b->link;
	bool		timed_out = end->failure == OUTBOX_FAILURE_TIMEOUT;
	bool		blames_events = meaning == AWS_FAILED || meaning == AWS_BAD_EVENT;
	char		words[AWS_SAYING];

	if (end->status == 0)
		strlcpy(words, end->words, sizeof(words));
	else if (a->code[0])
		aws_say(a->code, a->words, words);
	else
		snprintf(words, sizeof(words), "%s (status %d)%s%s",
				 a->contradicts			? "its answer does not fit the request" :
					 end->status <= 299 ? "what answers is another service" :
										  "it refuses",
				 end->status, a->words[0] ? ": " : "", a->words);
	if (blames_events)
		aws_link_up(link);
	else if (end->lacks == NULL)
		aws_link_down(link, words);
	if (link->of_role && !link->closed &&
		(strstr(a->code, "Token") || strstr(a->code, "UnrecognizedClient")))
		aws_role_refused();

	while (!dlist_is_empty(&b->transfers))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_pop_head_node(&b->transfers));
		OutboxOutcome  *o;

		t->sent = false;
		if (blames_events && b->n > 1 && t->delivery && !link->closed)
		{
			/* One of them may be the cause. */
			t->alone = true;
			dlist_push_tail(&link->alone, &t->node);
			continue;
		}
		o = new_outcome(OUTBOX_RESULT_UNAVAILABLE, end->status);
		o->lost_words = end->lost;
		o->lacks = end->lacks;
		if (timed_out || (blames_events && b->n == 1))
		{
			o->result = meaning == AWS_BAD_EVENT ? OUTBOX_RESULT_ABORT :
												   OUTBOX_RESULT_FAILED;
			o->event_at_fault = meaning == AWS_BAD_EVENT;
			o->failure = end->failure;
			snprintf(o->error, sizeof(o->error), "%s: %s", link->target.facts->label,
					 aws_link_words(link, words));
		}
		report(t, o);
	}
}

static void
end_request(AwsRequest *r, const AwsEnd *end)
{
	static AwsAnswer answer;
	Batch			*b = r->owner;
	OutboxLink		*link = b->link;
	AwsMeaning		 meaning = AWS_TROUBLE;
	bool			 slowed = false;
	int				 i = 0;
	dlist_iter		 iter;

	services.serves(link->endpoint);
	dlist_foreach(iter, &b->transfers) dlist_container(OutboxTransfer, node, iter.cur)
		->requests += end->sent;
	answer.code[0] = answer.words[0] = '\0';
	answer.ok = answer.contradicts = false;
	if (end->status != 0)
	{
		aws_answer_read(&link->target, end->status, r->answer.data ? r->answer.data : "",
						r->answer.len, b->n, &answer);
		if (end->status > 299 || end->status < 200)
			meaning = aws_request_meaning(end->status, answer.code);
	}
	aws_http_release(r);
	if (answer.ok)
	{
		judge_link(link, &answer);
		while (!dlist_is_empty(&b->transfers))
		{
			OutboxTransfer *t = dlist_container(OutboxTransfer, node,
												dlist_pop_head_node(&b->transfers));

			t->sent = false;
			end_entry(t, end->status, &answer.entries[i], !slowed);
			slowed = slowed ||
				aws_entry_meaning(&link->target, &answer.entries[i]) == AWS_BUSY;
			i++;
		}
	}
	else
		end_together(b, end, &answer, meaning);
	free(b);
	link->requests--;
	aws_link_make_due(link);
	aws_link_free_unused(link);
}

/* ------------------------------------------------------------- requests */

/* Takes the next transfers into a body.  It has one at least. */
static void
fill(OutboxLink *link, Batch *b, AwsRequest *r)
{
	const AwsServiceFacts *facts = link->target.facts;
	bool				   alone = !dlist_is_empty(&link->alone);
	dlist_head			  *from = alone ? &link->alone : &link->waiting;
	size_t				   bytes = 0;

	aws_body_begin(&link->target, &r->body);
	while (b->n < (alone ? 1 : facts->batch_max) && !dlist_is_empty(from))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node, dlist_head_node(from));

		if (b->n > 0 && bytes + t->entry_bytes > facts->request_bytes)
			break;
		bytes += t->entry_bytes;
		dlist_delete(&t->node);
		dlist_push_tail(&b->transfers, &t->node);
		t->sent = true;
		aws_body_add(&link->target, &r->body, b->n++, &t->entry);
		if (!alone)
			link->nwaiting--;
	}
	aws_body_end(&link->target, &r->body);

	/* The entries of others are kept, because each may have to go alone. */
	if (b->n == 1)
		aws_text_free(
			&dlist_container(OutboxTransfer, node, dlist_head_node(&b->transfers))
				 ->entry);
}

/* Begins one request.  False: it cannot be. */
static bool
begin_request(OutboxLink *link)
{
	AwsRequest	  *r = aws_http_acquire();
	Batch		  *b = r ? calloc(1, sizeof(*b)) : NULL;
	AwsEnd		   end = {.failure = OUTBOX_FAILURE_INTERNAL};
	const char	  *problem;
	const AwsKeys *keys = aws_link_keys(link);

	if (b == NULL || keys == NULL)
	{
		free(b);
		if (r)
			aws_http_release(r);
		aws_link_down(link, keys ? "out of memory" : aws_role_reason());
		return false;
	}
	b->link = link;
	dlist_init(&b->transfers);
	r->owner = b;
	r->rest.endpoint = link->endpoint;
	link->requests++;
	fill(link, b, r);
	problem = aws_http_start(r, &link->target, keys, link->connect_timeout,
							 link->timeout);
	if (problem == NULL)
		return true;
	strlcpy(end.words, problem, sizeof(end.words));
	end_request(r, &end);
	return false;
}

static bool
may_begin(OutboxLink *link)
{
	if (!dlist_is_empty(&link->alone))
		return link->requests < REQUESTS_EAGER;
	if (dlist_is_empty(&link->waiting))
		return false;
	return link->requests <
		(link->nwaiting >= link->target.facts->batch_max ? REQUESTS_MAX : REQUESTS_EAGER);
}

static void
begin_requests(void)
{
	int		   n = 0;
	dlist_iter iter;

	/* Only entries that are on the list now, because 'done' may start others. */
	dlist_foreach(iter, &aws_due) n++;
	while (n-- > 0 && !dlist_is_empty(&aws_due))
	{
		OutboxLink *link = dlist_head_element(OutboxLink, due_node, &aws_due);

		outbox_list_remove(&link->due_node);
		while (may_begin(link) && begin_request(link))
			;
	}
}

/* ----------------------------------------------------------- the worker */

/* A refused connection may be allowed now. */
static void
aws_reload(void)
{
	const char *least = GetConfigOption("outbox.ssl_min_protocol_version", true, false);

	aws_http_set_tls(GetConfigOption("outbox.ssl_ca_file", true, false),
					 least && strcmp(least, "TLSv1.3") == 0);
	aws_role_reload();
	aws_links_retry();
}

static void
aws_init(const OutboxServices *given)
{
	services = *given;
	if (!aws_http_init(given))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("could not start libcurl: %m"),
				 errhint("Raise the limit of open files of the server.")));
	aws_reload();
	*find_rendezvous_variable(AWS_SIGNER) = unconstify(AwsSigner *, &aws_signer);
}

static void
aws_poll(void)
{
	AwsRequest *r;
	AwsEnd		end;
	int			n = 0;
	dlist_iter	iter;

	if (!aws_http_step())
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory: libcurl could not go on with its requests")));
	while ((r = aws_http_next(&end)) != NULL)
	{
		if (!r->plain)
			end_request(r, &end);
		else if (aws_role_ended(r, &end))
			aws_links_retry();
	}
	aws_role_step();

	/* Only entries that are on the list now, because 'done' may start others. */
	dlist_foreach(iter, &aws_ended) n++;
	while (n-- > 0 && !dlist_is_empty(&aws_ended))
		end_unsent(
			dlist_container(OutboxTransfer, node, dlist_pop_head_node(&aws_ended)));
	begin_requests();
}

/* ms.  -1: never */
static long
sooner(long a, long b)
{
	return a < 0 ? b : b < 0 ? a : Min(a, b);
}

static long
aws_timeout(void)
{
	if (!dlist_is_empty(&aws_due) || !dlist_is_empty(&aws_ended))
		return 0;
	return sooner(aws_http_timeout(), aws_role_timeout());
}

static const char *const config_names[] = {"credentials", "endpoint_url", "source", NULL};
static const char *const credential_names[] = {"access_key_id", "secret_access_key",
											   "session_token", NULL};

static const OutboxTransport aws_transport = {
	.abi = OUTBOX_TRANSPORT_ABI,
	.size = sizeof(OutboxTransport),
	.name = "aws",
	.memory = 8192,
	.default_format = "cloudevents",
	.default_in_flight = 100, /* ten requests of ten */
	.config_names = config_names,
	.credential_names = credential_names,
	.check = aws_link_check,
	.keeps_credentials = aws_link_keeps_credentials,
	.init = aws_init,
	.reload = aws_reload,
	.fd = aws_http_fd,
	.timeout = aws_timeout,
	.poll = aws_poll,
	.open = aws_link_open,
	.state = aws_link_state,
	.close = aws_link_close,
	.acquire = aws_acquire,
	.release = aws_release,
	.start = aws_start,
	.cancel = aws_cancel,
	.shutdown = aws_http_shutdown,
};

const OutboxTransport *
outbox_sink(void)
{
	return &aws_transport;
}
