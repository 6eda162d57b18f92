/*
 * aws_link.c
 *	  Owns the ways of endpoints to AWS: their settings, and when they are down.
 */
#include "aws_link.h"

#include "aws_role.h"
#include "base/listed.h"

/* ms after which a link that is down is tried again, doubled each time */
#define RETRY_FIRST 500
#define RETRY_MAX 10000

#define DEFAULT_SOURCE "outbox" /* of EventBridge */

dlist_head		  aws_due = DLIST_STATIC_INIT(aws_due);
dlist_head		  aws_ended = DLIST_STATIC_INIT(aws_ended);
static dlist_head down = DLIST_STATIC_INIT(down);

/* ------------------------------------------------------------- targets */

/* Reads where requests to the target go.  Returns the problem.  NULL: none. */
static const char *
parse(const OutboxTarget *target, AwsTarget *t)
{
	return aws_target_parse(target->url,
							sink_option(target->config, target->nconfig, "endpoint_url"),
							t);
}

static const char *
target_problem(const OutboxTarget *target, AwsTarget *t, OutboxAdvice *advice)
{
	const char *source = sink_option(target->config, target->nconfig, "source");
	const char *role = sink_option(target->config, target->nconfig, "credentials");
	const char *problem = aws_target_parse(target->url, "https://any", t);

	advice->hint =
		"Write the URL as the ARN of a queue, topic, event bus or stream, like arn:aws:sqs:eu-central-1:123456789012:orders.";
	if (problem)
		return problem;
	advice->field = "config";
	advice->hint =
		"Write endpoint_url as a scheme, a host and perhaps a port, like https://vpce-1.example:8443.";
	problem = parse(target, t);
	if (problem)
		return problem;
	if (source &&
		(t->service != AWS_EVENTS || source[0] == '\0' ||
		 strncmp(source, "aws.", 4) == 0))
	{
		advice->hint =
			"source is for EventBridge only, is not empty, and does not begin with aws.";
		return "source cannot be used";
	}
	if (role)
	{
		advice->hint =
			"Use config => '{\"credentials\": \"role\"}' without credentials, or credentials with access_key_id and secret_access_key.";
		if (strcmp(role, "role") != 0)
			return "credentials in config is not role";
		return target->ncredentials > 0 ? "it has credentials, and those of a role, too" :
										  NULL;
	}
	advice->field = "credentials";
	if (!sink_option(target->credentials, target->ncredentials, "access_key_id") ||
		!sink_option(target->credentials, target->ncredentials, "secret_access_key"))
	{
		advice->hint =
			"Use credentials => '{\"access_key_id\": \"...\", \"secret_access_key\": \"...\"}', and session_token if there is one.";
		return "credentials without access_key_id or secret_access_key";
	}
	return NULL;
}

const char *
aws_link_check(const OutboxTarget *target, OutboxAdvice *advice)
{
	AwsTarget	t;
	const char *problem = target_problem(target, &t, advice);

	if (problem == NULL && sink_option(target->config, target->nconfig, "credentials") &&
		!aws_role_is_set())
	{
		advice->hint =
			"Let an administrator set outbox.aws_role. Each endpoint may then do what the role of this machine may.";
		return "outbox.aws_role is none";
	}
	if (problem == NULL && !t.fifo && t.service == AWS_SQS)
		advice->notice =
			"a standard queue does not keep the order of a key, whatever ordering says; a FIFO queue does";
	else if (problem == NULL && !t.fifo && t.service == AWS_SNS)
		advice->notice =
			"a standard topic does not keep the order of a key, whatever ordering says; a FIFO topic does";
	else if (problem == NULL && t.service == AWS_EVENTS)
		advice->notice =
			"EventBridge does not keep the order of a key, whatever ordering says";
	return problem;
}

bool
aws_link_keeps_credentials(const OutboxTarget *from, const OutboxTarget *to)
{
	AwsTarget before;
	AwsTarget after;

	return parse(from, &before) == NULL && parse(to, &after) == NULL &&
		strcasecmp(before.url, after.url) == 0;
}

/* --------------------------------------------------------------- links */

static char *
copy(const char *text)
{
	return text ? strdup(text) : NULL;
}

/* Values go into header lines, so none may begin another line.  NULL: none would. */
static const char *
control_character_in(const OutboxOption *given, int n)
{
	for (int i = 0; i < n; i++)
		for (const char *c = given[i].value; *c; c++)
			if ((unsigned char) *c < ' ' || *c == 0x7f)
				return given[i].name;
	return NULL;
}

OutboxLink *
aws_link_open(const OutboxTarget *target, char *reason, size_t size)
{
	OutboxLink		   *link = calloc(1, sizeof(*link));
	const OutboxOption *given = target->credentials;
	const char		   *problem = "out of memory";
	const char		   *token = sink_option(given, target->ncredentials, "session_token");
	const char		   *source = sink_option(target->config, target->nconfig, "source");
	const char		   *odd = control_character_in(given, target->ncredentials);
	OutboxAdvice		advice;

	if (link == NULL ||
		(problem = target_problem(target, &link->target, &advice)) != NULL)
	{
		strlcpy(reason, problem, size);
		free(link);
		return NULL;
	}
	if (odd)
	{
		snprintf(reason, size, "%s has a control character", odd);
		free(link);
		return NULL;
	}
	link->of_role = sink_option(target->config, target->nconfig, "credentials") != NULL;
	link->keys.access_key_id = copy(
		sink_option(given, target->ncredentials, "access_key_id"));
	link->keys.secret_access_key = copy(
		sink_option(given, target->ncredentials, "secret_access_key"));
	link->keys.session_token = copy(token);
	link->source = copy(source ? source : DEFAULT_SOURCE);
	if (link->source == NULL || (token && link->keys.session_token == NULL) ||
		(!link->of_role &&
		 (link->keys.access_key_id == NULL || link->keys.secret_access_key == NULL)))
	{
		strlcpy(reason, "out of memory", size);
		aws_keys_wipe(&link->keys);
		free(link->source);
		free(link);
		return NULL;
	}
	link->endpoint = target->endpoint;
	link->connect_timeout = target->connect_timeout;
	link->timeout = target->timeout;
	dlist_init(&link->alone);
	dlist_init(&link->waiting);
	if (link->of_role)
	{
		aws_role_user = link->endpoint;
		aws_role_join();
	}
	return link;
}

const AwsKeys *
aws_link_keys(const OutboxLink *link)
{
	return link->of_role ? aws_role_keys() : &link->keys;
}

OutboxLinkState
aws_link_state(OutboxLink *link, char *reason, size_t size)
{
	if (aws_link_keys(link) == NULL)
	{
		snprintf(reason, size, "%s: %s", link->target.facts->label, aws_role_reason());
		return OUTBOX_LINK_DOWN;
	}
	if (link->retry_at == 0)
		return OUTBOX_LINK_UP;
	strlcpy(reason, link->reason, size);
	/* Each request ends in time, so there is one at a time. */
	return link->retry_at <= sink_now_ms() && link->transfers == 0 ? OUTBOX_LINK_PROBING :
																	 OUTBOX_LINK_DOWN;
}

void
aws_link_free_unused(OutboxLink *link)
{
	if (!link->closed || link->transfers > 0 || link->requests > 0)
		return;
	if (link->retry_at != 0)
		dlist_delete(&link->down_node);
	outbox_list_remove(&link->due_node);

	/* Not earlier: an answer until then may repeat the token. */
	aws_keys_wipe(&link->keys);
	if (link->of_role)
		aws_role_leave();
	free(link->source);
	free(link);
}

void
aws_link_up(OutboxLink *link)
{
	if (link->retry_at != 0)
		dlist_delete(&link->down_node);
	link->retry_at = 0;
	link->backoff = 0;
}

/* Ends all deliveries that were not sent. */
static void
put_back_all(OutboxLink *link)
{
	dlist_head *lists[] = {&link->alone, &link->waiting};

	for (size_t i = 0; i < lengthof(lists); i++)
		while (!dlist_is_empty(lists[i]))
		{
			OutboxTransfer *t = dlist_container(OutboxTransfer, node,
												dlist_pop_head_node(lists[i]));

			t->unavailable = true;
			dlist_push_tail(&aws_ended, &t->node);
		}
	link->nwaiting = 0;
}

/* A receiver may repeat the request in its answer. */
const char *
aws_link_words(const OutboxLink *link, const char *words)
{
	const char *token = link->keys.session_token;

	return (token && aws_gives_away(words, token)) ||
			(link->of_role && aws_role_is_given_away(words)) ?
		"its words have the session token in them" :
		words;
}

void
aws_link_down(OutboxLink *link, const char *words)
{
	int64 now = sink_now_ms();

	put_back_all(link);
	if (link->retry_at > now)
		return;
	snprintf(link->reason, sizeof(link->reason), "%s: %s", link->target.facts->label,
			 aws_link_words(link, words));
	if (link->retry_at == 0)
		dlist_push_tail(&down, &link->down_node);
	link->backoff = link->backoff ? Min(link->backoff * 2, RETRY_MAX) : RETRY_FIRST;
	link->retry_at = now + link->backoff;
}

void
aws_link_make_due(OutboxLink *link)
{
	if (!dlist_is_empty(&link->alone) || !dlist_is_empty(&link->waiting))
		outbox_list_add(&aws_due, &link->due_node);
}

void
aws_link_close(OutboxLink *link)
{
	put_back_all(link);
	link->closed = true;
	aws_link_free_unused(link);
}

void
aws_links_retry(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &down)
	{
		OutboxLink *link = dlist_container(OutboxLink, down_node, iter.cur);

		link->retry_at = Min(link->retry_at, sink_now_ms());
		link->backoff = 0;
	}
}
