/*
 * http_auth.c
 *	  Owns how requests of an endpoint with credentials authenticate themselves: basic,
 *	  bearer, OAuth 2 client credentials (RFC 6749, 4.4), and certificates of its own.
 *
 * Such an endpoint has a link.  It is up, but for OAuth while there is no token: then
 * nothing is sent, and nothing counts as a failure, because the receiver was not asked.  A
 * token is got by a request of this transport, with all its limits.
 */
#include "base/compat.h"
#include "base/encoding.h"
#include "base/names.h"
#include "base/settings.h"
#include "format/batch_answer.h"
#include "transport/http/http_internal.h"

#include <stdlib.h>

#define TOKEN_MAX (16 * 1024)
#define ANSWER_KB_MAX 32 /* with a token */
#define FORM_MAX 4096

/* s that a token lives if its server does not say */
#define LIFETIME 300
#define LIFETIME_MAX (30 * 24 * 3600)

/* ms between attempts to get a token: doubled each time, and between two that got one */
#define AGAIN_FIRST 1000
#define AGAIN_MAX 60000
#define TOKENS_APART 10000

/*
 * Requests for a token in flight, of all endpoints, which have a part of the descriptors.  A
 * server that has just failed may have only half of the places, so servers that hang leave
 * some to others.
 */
#define FETCHES_MAX 512
#define FILES_SHARE 16
static int fetches;

void (*outbox_http_link_changed)(int32_t endpoint);

/*
 * ms: a token that no request has used with success, and that is younger, is not replaced
 * because it was refused.
 */
#define NEW_FOR (60 * 1000)

/* The token of a link, and when another one is to be asked for.  Times are in ms. */
typedef struct Token
{
	char  *authorization; /* the value of the header; NULL: none yet */
	uint64 number;
	bool   good;	/* a request had it and was not refused */
	uint64 excused; /* the token whose refusals do not count, since the last success (0:
					 * none yet) */
	int64  got_at;
	int64  renew_at;
	int64  expires_at;
	int64  again_at;
	int64  again_wait;
	char   reason[128];
} Token;

struct OutboxLink
{
	bool			   closed;
	int				   in_flight;
	Token			   token; /* also of basic and bearer, where it has only a value */
	OutboxHttpIdentity identity;

	/* OAuth */
	bool		 oauth;
	OutboxTarget target; /* of requests for a token */
	char		*form;
	char *client; /* the header with the client's secret; NULL: it is in the form */
	OutboxTransfer *fetch; /* in flight */
};

static OutboxLink *newest; /* that was opened last; NULL: it is closed */

static void
wipe_blob(struct curl_blob *blob)
{
	if (blob->data)
	{
		explicit_bzero(blob->data, blob->len);
		free(blob->data);
	}
	blob->data = NULL;
	blob->len = 0;
}

static void
free_link(OutboxLink *link)
{
	outbox_wipe(&link->token.authorization);
	outbox_wipe(&link->form);
	outbox_wipe(&link->client);
	wipe_blob(&link->identity.certificate);
	wipe_blob(&link->identity.key);
	wipe_blob(&link->identity.authority);
	free(link->target.url);
	free(link);
}

/* ------------------------------------------------------------- credentials */

static const char *
credential(const OutboxTarget *target, const char *name)
{
	const OutboxOption *option = outbox_option_find(target->credentials,
													target->ncredentials, name);

	return option ? option->value : NULL;
}

/* "Basic " and the base64 of both, malloc'd.  NULL: memory runs out. */
static char *
basic_value(const char *user, const char *password)
{
	size_t len = strlen(user) + strlen(password) + 1;
	size_t size = sizeof("Basic ") + (len + 2) / 3 * 4 + 1;
	char  *both = malloc(len + 1);
	char  *value = malloc(size);

	if (both && value)
	{
		int n;

		snprintf(both, len + 1, "%s:%s", user, password);
		memcpy(value, "Basic ", 6);
		n = outbox_b64_encode((const uint8 *) both, (int) len, value + 6, (int) size - 6);
		value[6 + n] = '\0';
		explicit_bzero(both, len);
	}
	else
	{
		free(value);
		value = NULL;
	}
	free(both);
	return value;
}

/* Appends a member of a form, percent-encoded.  Returns false if it does not fit. */
static bool
append_form(char *form, size_t *len, const char *name, const char *value)
{
	size_t name_len = strlen(name);

	if (value == NULL)
		return true;
	if (*len + name_len + 3 * strlen(value) + 3 > FORM_MAX)
		return false;
	if (*len > 0)
		form[(*len)++] = '&';
	memcpy(form + *len, name, name_len);
	*len += name_len;
	form[(*len)++] = '=';
	*len += outbox_percent_encode(value, strlen(value), form + *len);
	form[*len] = '\0';
	return true;
}

/* RFC 6749, 2.3.1: id and secret are encoded as in a form before they are put together. */
static char *
client_value(const char *id, const char *secret)
{
	char *parts[2] = {malloc(3 * strlen(id) + 1), malloc(3 * strlen(secret) + 1)};
	char *value = NULL;

	if (parts[0] && parts[1])
	{
		parts[0][outbox_percent_encode(id, strlen(id), parts[0])] = '\0';
		parts[1][outbox_percent_encode(secret, strlen(secret), parts[1])] = '\0';
		value = basic_value(parts[0], parts[1]);
	}
	outbox_wipe(&parts[1]);
	free(parts[0]);
	return value;
}

/* Returns NULL, or the problem in words. */
static const char *
open_oauth(OutboxLink *link, const OutboxTarget *target)
{
	const char *auth = outbox_http_option(target, "token_auth");
	const char *id = outbox_http_option(target, "client_id");
	const char *secret = credential(target, "client_secret");
	bool		post = auth && strcmp(auth, "post") == 0;
	size_t		len = 0;

	link->oauth = true;
	link->target = (OutboxTarget){.transport = target->transport,
								  .url = strdup(outbox_http_option(target, "token_url")),
								  .connect_timeout = target->connect_timeout,
								  .timeout = target->timeout,
								  .whole_answer = ANSWER_KB_MAX,
								  .endpoint = target->endpoint};
	link->form = malloc(FORM_MAX + 1);
	if (link->target.url == NULL || link->form == NULL ||
		(!post && (link->client = client_value(id, secret)) == NULL))
		return OUTBOX_LACKS_MEMORY;
	if (!append_form(link->form, &len, "grant_type", "client_credentials") ||
		!append_form(link->form, &len, "scope", outbox_http_option(target, "scope")) ||
		!append_form(link->form, &len, "audience",
					 outbox_http_option(target, "audience")) ||
		!append_form(link->form, &len, "client_id", post ? id : NULL) ||
		!append_form(link->form, &len, "client_secret", post ? secret : NULL))
		return "the request for a token is too long";
	snprintf(link->token.reason, sizeof(link->token.reason), "waiting for a token");
	return NULL;
}

/*
 * libcurl uses a connection again whose certificate is the same, also with another key, and
 * certificates are public.  So each link has a certificate of its own, by its number.
 */
static const char *
open_identity(OutboxHttpIdentity *own, const OutboxTarget *target)
{
	const char *certificate = credential(target, "client_certificate");
	const char *key = credential(target, "client_key");
	const char *authority = credential(target, "ca_certificate");
	const char *problem = NULL;

	if (certificate)
		problem = outbox_http_read_certificates(certificate, own->number,
												&own->certificate);
	if (problem == NULL && key)
		problem = outbox_http_read_key(key, &own->key);
	if (problem == NULL && authority)
		problem = outbox_http_read_certificates(authority, 0, &own->authority);
	return problem;
}

static const char *
open_parts(OutboxLink *link, const OutboxTarget *target)
{
	const char *token = credential(target, "token");
	const char *user = credential(target, "username");
	const char *problem = open_identity(&link->identity, target);

	if (problem)
		return problem;
	if (outbox_http_option(target, "token_url"))
		return open_oauth(link, target);
	if (token)
	{
		size_t size = strlen(token) + sizeof("Bearer ");

		if (outbox_header_value_problem(token, strlen(token)))
			return "the token has a control character";
		link->token.authorization = malloc(size);
		if (link->token.authorization)
			snprintf(link->token.authorization, size, "Bearer %s", token);
	}
	else if (user)
		link->token.authorization = basic_value(user, credential(target, "password"));
	return (token || user) && link->token.authorization == NULL ? OUTBOX_LACKS_MEMORY :
																  NULL;
}

OutboxLink *
outbox_http_open(const OutboxTarget *target, char *reason, size_t size)
{
	static uint64 number;
	OutboxAdvice  advice = {NULL};
	const char	 *problem = outbox_http_auth_problem(target, &advice);
	OutboxLink	 *link = problem ? NULL : calloc(1, sizeof(*link));

	if (link)
	{
		link->identity.number = ++number;
		problem = open_parts(link, target);
		if (problem)
			free_link(link);
		else
			newest = link;
	}
	else if (problem == NULL)
		problem = OUTBOX_LACKS_MEMORY;
	snprintf(reason, size, "%s", problem ? problem : "");
	return problem ? NULL : link;
}

/* ------------------------------------------------------------------ tokens */

static bool
has_token(const OutboxLink *link, int64 now)
{
	return link->token.authorization != NULL &&
		(!link->oauth || now < link->token.expires_at);
}

static void
fetch_again(OutboxLink *link, int64 wait, const char *words)
{
	link->token.again_at = outbox_http_now() + wait;
	snprintf(link->token.reason, sizeof(link->token.reason), "no token: %s", words);
}

static void
fetch_failed(OutboxLink *link, const char *words)
{
	Token *t = &link->token;

	t->again_wait = Min(Max(2 * t->again_wait, AGAIN_FIRST), AGAIN_MAX);
	fetch_again(link, t->again_wait, words);
}

/* A lack of our own says nothing about the token server. */
static void
fetch_not_sent(OutboxLink *link, const char *words)
{
	fetch_again(link, AGAIN_FIRST, words);
}

/* The answer of a token server has an access_token, and perhaps expires_in, in seconds. */
static void
take_token(OutboxLink *link, const OutboxOutcome *o)
{
	Token *t = &link->token;
	char   seconds[32];
	char  *value = malloc(TOKEN_MAX + sizeof("Bearer "));
	char  *text = value ? value + 7 : NULL;
	double lifetime = LIFETIME;

	if (value == NULL)
	{
		fetch_not_sent(link, OUTBOX_LACKS_MEMORY);
		return;
	}
	memcpy(value, "Bearer ", 7);
	if (!outbox_answer_member(o->answer, o->answer_len, "access_token", text,
							  TOKEN_MAX) ||
		text[0] == '\0' || outbox_header_value_problem(text, strlen(text)))
	{
		explicit_bzero(text, TOKEN_MAX);
		free(value);
		fetch_failed(link, "the answer of the token server has none");
		return;
	}
	if (outbox_answer_member(o->answer, o->answer_len, "expires_in", seconds,
							 sizeof(seconds)))
		lifetime = Min(Max(strtod(seconds, NULL), 1), LIFETIME_MAX);
	outbox_wipe(&t->authorization);
	t->authorization = value;
	t->number++;
	t->good = false;
	t->got_at = outbox_http_now();
	t->expires_at = t->got_at + (int64) (lifetime * 1000);
	t->renew_at = t->expires_at - (int64) (Min(lifetime / 5, 60) * 1000);
	t->again_at = t->got_at + TOKENS_APART;
	t->again_wait = 0;
	snprintf(t->reason, sizeof(t->reason),
			 "the token has expired: waiting for another one");
}

static void
fetch_ended(void *arg, const OutboxOutcome *o)
{
	OutboxLink *link = arg;

	link->fetch = NULL;
	fetches--;
	if (outbox_http_link_changed)
		outbox_http_link_changed(link->target.endpoint);
	if (o->result == OUTBOX_RESULT_DELIVERED)
		take_token(link, o);
	else if (o->result == OUTBOX_RESULT_UNKNOWN)
		fetch_failed(link, "the answer of the token server is too long, or was cut off");
	else if (o->result == OUTBOX_RESULT_UNAVAILABLE)
		fetch_not_sent(link, o->lacks ? o->lacks : o->error);
	else if (o->status > 0)
	{
		char words[64];

		snprintf(words, sizeof(words), "the token server answered %d", o->status);
		fetch_failed(link, words);
	}
	else
		fetch_failed(link, o->error);
}

static void
begin_fetch(OutboxLink *link)
{
	OutboxTransfer *t = link->target.transport->acquire();
	OutboxMessage	message = {.body = link->form, .body_len = strlen(link->form)};
	OutboxHeaders  *h = t ? &t->headers : NULL;

	if (t == NULL)
	{
		fetch_not_sent(link, OUTBOX_LACKS_MEMORY);
		return;
	}
	if (!outbox_headers_add(h, "Content-Type", "application/x-www-form-urlencoded",
							strlen("application/x-www-form-urlencoded")) ||
		!outbox_headers_add(h, "Accept", "application/json",
							strlen("application/json")) ||
		!outbox_headers_add(h, "User-Agent", "outbox/" OUTBOX_VERSION,
							strlen("outbox/" OUTBOX_VERSION)) ||
		(link->client &&
		 !outbox_headers_add(h, "Authorization", link->client, strlen(link->client))))
	{
		link->target.transport->release(t);
		fetch_not_sent(link, OUTBOX_LACKS_MEMORY);
		return;
	}
	link->fetch = t;
	fetches++;
	t->done = fetch_ended;
	t->identity = &link->identity;
	link->target.transport->start(t, &link->target, NULL, &message, link);
}

static bool
has_place(const OutboxLink *link)
{
	int most = Max(Min(FETCHES_MAX, outbox_open_files() / FILES_SHARE), 2);

	return fetches < (link->token.again_wait > 0 ? most / 2 : most);
}

static bool
wants_token(const OutboxLink *link, int64 now)
{
	const Token *t = &link->token;

	return link->fetch == NULL && now >= t->again_at &&
		(!has_token(link, now) || now >= t->renew_at) && has_place(link) &&
		!outbox_http_owes(link->target.endpoint);
}

OutboxLinkState
outbox_http_link_state(OutboxLink *link, char *reason, size_t size)
{
	int64 now;

	reason[0] = '\0';
	if (!link->oauth)
		return OUTBOX_LINK_UP;
	now = outbox_http_now();
	if (wants_token(link, now))
		begin_fetch(link);
	if (has_token(link, now))
		return OUTBOX_LINK_UP;
	snprintf(reason, size, "%s", link->token.reason);
	return OUTBOX_LINK_DOWN;
}

static bool
same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Certificates or keys, without the number of the link. */
static bool
same_pem(const struct curl_blob *a, const struct curl_blob *b)
{
	size_t		len[2] = {a->len, b->len};
	const char *data[2] = {a->data, b->data};

	for (int i = 0; i < 2; i++)
		while (len[i] > 0 && data[i][len[i] - 1] != '-')
			len[i]--;
	return len[0] == len[1] && (len[0] == 0 || memcmp(data[0], data[1], len[0]) == 0);
}

/*
 * True if a token of one is one of the other: the endpoint was changed in something else
 * meanwhile.
 */
static bool
has_same_token(const OutboxLink *a, const OutboxLink *b)
{
	return a->oauth && b->oauth && a->target.endpoint == b->target.endpoint &&
		same_text(a->target.url, b->target.url) && same_text(a->form, b->form) &&
		same_text(a->client, b->client) &&
		same_pem(&a->identity.certificate, &b->identity.certificate) &&
		same_pem(&a->identity.key, &b->identity.key) &&
		same_pem(&a->identity.authority, &b->identity.authority);
}

void
outbox_http_close(OutboxLink *link)
{
	if (link->fetch)
	{
		link->target.transport->cancel(link->fetch);
		fetches--;
	}
	link->fetch = NULL;
	link->closed = true;
	if (newest == link)
		newest = NULL;
	else if (newest && has_same_token(link, newest))
	{
		newest->token = link->token;
		link->token.authorization = NULL;
	}
	if (link->in_flight == 0)
		free_link(link);
}

/* ---------------------------------------------------------------- requests */

bool
outbox_http_auth_begin(OutboxTransfer *t, OutboxLink *link)
{
	if (link == NULL)
		return true;
	t->link = link;
	t->identity = &link->identity;
	t->token = link->token.number;
	link->in_flight++;
	return !link->oauth || has_token(link, outbox_http_now());
}

bool
outbox_http_auth_header(OutboxTransfer *t)
{
	const OutboxLink *link = t->link;

	return link == NULL || link->token.authorization == NULL ||
		outbox_headers_add(&t->headers, "Authorization", link->token.authorization,
						   strlen(link->token.authorization));
}

/*
 * A 401 for a token that was good, or is not new, says only that it ended early.  It is
 * then replaced, and the event is sent once more.  So it is if another one took its place
 * meanwhile, or another link.  If the next token is refused, too, that counts.
 */
void
outbox_http_auth_answered(OutboxTransfer *transfer)
{
	OutboxLink *link = transfer->link;
	Token	   *t;
	int64		now;

	if (link == NULL || !link->oauth)
		return;
	t = &link->token;
	if (transfer->outcome.status != 401)
	{
		t->good = t->good || transfer->token == t->number;
		t->excused = 0;
		return;
	}
	now = outbox_http_now();
	if (transfer->token == t->number && !link->closed)
	{
		if (now - t->got_at < (t->good ? TOKENS_APART : NEW_FOR))
			return;
		t->expires_at = 0;
		snprintf(t->reason, sizeof(t->reason),
				 "the receiver has refused the token: waiting for another one");
	}
	if (t->excused != 0 && t->excused != transfer->token)
		return;
	t->excused = transfer->token;
	transfer->outcome.result = OUTBOX_RESULT_UNAVAILABLE;
	transfer->outcome.lacks = NULL;
}

void
outbox_http_auth_end(OutboxTransfer *t)
{
	OutboxLink *link = t->link;

	t->link = NULL;
	t->identity = NULL;
	if (link && --link->in_flight == 0 && link->closed)
		free_link(link);
}
