/*
 * profile.c
 *	  Owns profiles: how a webhook is signed, and which headers of outbox it has.
 *
 * Standard Webhooks is the profile of an endpoint that chooses none.  The others are
 * what receivers of well-known services verify.  Everything in them can be changed by the
 * endpoint's config, which a customer may have written: so each text is checked where
 * it is given.
 */
#include "base/outbox.h"

#include <ctype.h>

#include "utils/builtins.h"

#include "base/encoding.h"
#include "base/names.h"
#include "format/profile.h"

#define TEXT_MAX 64 /* bytes of a text with places */
#define NAME_BYTES_MAX 64
#define AGENT_MAX 100
#define QUERY_MAX 512

/* A profile whose signatures are hex of HMAC-SHA256 with the secret's text as the key */
#define HEX_OF_TEXT .hash = OUTBOX_HASH_SHA256, .hex = true, .text_key = true

/* The headers and texts of Standard Webhooks */
#define LIKE_STANDARD(prefix, version) \
	.id_header = prefix "-id", .timestamp_header = prefix "-timestamp", \
	.signature_header = prefix "-signature", .signed_text = "{id}.{timestamp}.{body}", \
	.value = version ",{signature}", .next = " " version ",{signature}", \
	.sends = OUTBOX_SENDS_ALL

const OutboxProfile outbox_profile_standard = {.name = "standard",
											   LIKE_STANDARD("webhook", "v1"),
											   .hash = OUTBOX_HASH_SHA256};

static const OutboxProfile profiles[] = {
	{.name = "ed25519", LIKE_STANDARD("webhook", "v1a"), .hash = OUTBOX_HASH_ED25519},
	{.name = "svix", LIKE_STANDARD("svix", "v1"), .hash = OUTBOX_HASH_SHA256},
	{.name = "stripe",
	 .signature_header = "Stripe-Signature",
	 .signed_text = "{timestamp}.{body}",
	 .value = "t={timestamp},v1={signature}",
	 .next = ",v1={signature}",
	 HEX_OF_TEXT,
	 .sends = OUTBOX_SENDS_ALL},
	{.name = "github",
	 .id_header = "X-GitHub-Delivery",
	 .type_header = "X-GitHub-Event",
	 .signature_header = "X-Hub-Signature-256",
	 .signed_text = "{body}",
	 .value = "sha256={signature}",
	 HEX_OF_TEXT,
	 .sends = OUTBOX_SENDS_ALL},
	{.name = "shopify",
	 .id_header = "X-Shopify-Webhook-Id",
	 .type_header = "X-Shopify-Topic",
	 .signature_header = "X-Shopify-Hmac-Sha256",
	 .signed_text = "{body}",
	 .value = "{signature}",
	 .hash = OUTBOX_HASH_SHA256,
	 .text_key = true,
	 .sends = OUTBOX_SENDS_ALL},
	{.name = "slack",
	 .timestamp_header = "X-Slack-Request-Timestamp",
	 .signature_header = "X-Slack-Signature",
	 .signed_text = "v0:{timestamp}:{body}",
	 .value = "v0={signature}",
	 HEX_OF_TEXT,
	 .sends = OUTBOX_SENDS_ALL},
	{.name = "none",
	 .signed_text = "{body}",
	 .value = "{signature}",
	 .sends = OUTBOX_SENDS_ALL},
};

/* The words of outbox_headers. */
static const struct
{
	const char *word;
	int			sends;
} own_headers[] = {
	{"all", OUTBOX_SENDS_ALL},
	{"none", 0},
	{"topic", OUTBOX_SENDS_TOPIC},
	{"type", OUTBOX_SENDS_TYPE},
	{"key", OUTBOX_SENDS_KEY},
	{"tenant", OUTBOX_SENDS_TENANT},
	{"sequence", OUTBOX_SENDS_SEQUENCE},
	{"attempt", OUTBOX_SENDS_ATTEMPT},
	{"redelivery", OUTBOX_SENDS_REDELIVERY},
	{"test", OUTBOX_SENDS_TEST},
	{"idempotency-key", OUTBOX_SENDS_IDEMPOTENCY_KEY},
};

const OutboxProfile *
outbox_profile_find(const char *name)
{
	if (strcmp(name, outbox_profile_standard.name) == 0)
		return &outbox_profile_standard;
	for (size_t i = 0; i < lengthof(profiles); i++)
		if (strcmp(name, profiles[i].name) == 0)
			return &profiles[i];
	return NULL;
}

OutboxSecretForm
outbox_profile_secret_form(const OutboxProfile *p)
{
	if (p->hash == OUTBOX_HASH_ED25519)
		return OUTBOX_SECRET_PRIVATE;
	return p->text_key ? OUTBOX_SECRET_TEXT : OUTBOX_SECRET_BYTES;
}

/* ------------------------------------------------- texts with places */

/*
 * Returns how often the place is in the text, and sets '*at' to its last occurrence.
 */
static int
count_place(const char *text, const char *place, const char **at)
{
	int n = 0;

	*at = NULL;
	while ((text = strstr(text, place)) != NULL)
	{
		*at = text;
		text += strlen(place);
		n++;
	}
	return n;
}

/* True if braces are only those of the places, each of which occurs once at most. */
static bool
places_valid(const char *text, const char *const *places)
{
	int			braces = 0;
	int			found = 0;
	const char *at;

	for (const char *c = text; *c; c++)
		braces += *c == '{' || *c == '}';
	for (; *places; places++)
	{
		int n = count_place(text, *places, &at);

		if (n > 1)
			return false;
		found += n;
	}
	return braces == 2 * found;
}

static bool
is_printable(const char *text, size_t max)
{
	size_t len = strlen(text);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char) text[i] < 0x20 || (unsigned char) text[i] > 0x7e)
			return false;
	return len <= max;
}

/* Writes the text up to 'end', with the values of its places.  Returns the end. */
static char *
put_places(char *p, const char *text, const char *end, const char *id, size_t id_len,
		   const char *timestamp, size_t timestamp_len, const char *signature,
		   size_t signature_len)
{
	while (text < end)
	{
		const char *brace = memchr(text, '{', end - text);

		if (brace == NULL)
			return outbox_put(p, text, end - text);
		p = outbox_put(p, text, brace - text);
		switch (brace[1])
		{
			case 'i':
				p = outbox_put(p, id, id_len);
				break;
			case 't':
				p = outbox_put(p, timestamp, timestamp_len);
				break;
			default:
				p = outbox_put(p, signature, signature_len);
		}
		text = strchr(brace, '}') + 1;
	}
	return p;
}

size_t
outbox_profile_sign(const OutboxProfile *p, const OutboxKey *keys, int nkeys,
					const char *id, size_t id_len, int64 timestamp, const char *body,
					size_t body_len, char *out)
{
	char   head[TEXT_MAX + OUTBOX_SIGNED_ID_MAX + MAXINT8LEN];
	char   seconds[MAXINT8LEN + 1];
	char   signature[OUTBOX_SIGNATURE_MAX];
	size_t seconds_len = pg_lltoa(timestamp, seconds);
	size_t head_len;
	char  *end = out;

	Assert(id_len <= OUTBOX_SIGNED_ID_MAX);
	head_len = put_places(head, p->signed_text,
						  p->signed_text + strlen(p->signed_text) -
							  (sizeof("{body}") - 1),
						  id, id_len, seconds, seconds_len, NULL, 0) -
		head;
	for (int i = 0; i < nkeys; i++)
	{
		const char *text = i == 0 ? p->value : p->next;
		size_t		len;

		if (text == NULL)
			break;
		len = outbox_sign(&keys[i], p->hash, p->hex, head, head_len, body, body_len,
						  signature);
		end = put_places(end, text, text + strlen(text), id, id_len, seconds, seconds_len,
						 signature, len);
	}
	return end - out;
}

static const OutboxQueryValue *
query_value(const char *brace, const OutboxQueryValue *values, int n)
{
	for (int i = 0; i < n; i++)
		if (strncmp(brace, values[i].name, strlen(values[i].name)) == 0)
			return &values[i];
	return NULL;
}

size_t
outbox_profile_query_size(const OutboxProfile *p, const OutboxQueryValue *values, int n)
{
	size_t size = strlen(p->query);

	for (int i = 0; i < n; i++)
		size += 3 * values[i].len;
	return size;
}

size_t
outbox_profile_query(const OutboxProfile *p, const OutboxQueryValue *values, int n,
					 char *out)
{
	char *end = out;

	for (const char *c = p->query; *c; c++)
	{
		const OutboxQueryValue *v;

		if (*c != '{')
		{
			*end++ = *c;
			continue;
		}
		v = query_value(c, values, n);
		if (v && v->value)
			end += outbox_percent_encode(v->value, v->len, end);
		c = strchr(c, '}');
	}
	return end - out;
}

/* -------------------------------------------------------- a config */

/*
 * The name of a header that a profile sends.  It may be one of outbox's own, but none
 * that frames the message, or that something else sets.
 */
static const char *
set_header(const char **to, const char *value, const char **hint)
{
	const char *rest = value;

	*to = NULL;
	if (value[0] == '\0')
		return NULL;
	if (pg_strncasecmp(value, "webhook-", 8) == 0)
		rest += 8;
	if (strlen(value) > NAME_BYTES_MAX ||
		outbox_header_name_problem(rest, strlen(rest), true) != NULL)
	{
		*hint =
			"Use a token of at most 64 characters, such as X-Signature. Authorization, Cookie, Content-Type, the headers of the connection, and names that begin with outbox- or ce- are set elsewhere.";
		return "a header in config cannot have this name";
	}
	*to = value;
	return NULL;
}

static const char *
set_text(const char **to, const char *value, const char *const *places, const char **hint)
{
	if (value[0] == '\0' || !is_printable(value, TEXT_MAX) ||
		!places_valid(value, places))
	{
		*hint =
			"Use at most 64 characters of printable ASCII. {id}, {timestamp} and {signature} may occur once each, where they have a meaning.";
		return "a text for signatures is not valid";
	}
	*to = value;
	return NULL;
}

/* The signed text ends with the body, which is not copied. */
static const char *
set_signed(OutboxProfile *p, const char *value, const char **hint)
{
	static const char *const places[] = {"{id}", "{timestamp}", "{body}", NULL};
	size_t					 len = strlen(value);

	if (len < 6 || strcmp(value + len - 6, "{body}") != 0 ||
		set_text(&p->signed_text, value, places, hint) != NULL)
	{
		*hint =
			"Use {id}.{timestamp}.{body}, {timestamp}.{body} or {body}, with other text before or between. {body} is the end.";
		return "signed is not valid";
	}
	return NULL;
}

/* The form of a signature's header, or of its continuation. */
static const char *
set_value(const char **to, const char *value, const char **hint)
{
	static const char *const places[] = {"{id}", "{timestamp}", "{signature}", NULL};
	const char				*at;

	if (count_place(value, "{signature}", &at) != 1)
	{
		*hint = "It has {signature} once, like v1={signature}.";
		return "the form of a signature has no place for it";
	}
	return set_text(to, value, places, hint);
}

static const char *
set_own_headers(OutboxProfile *p, const char *value, const char **hint)
{
	int sends = 0;

	while (*value)
	{
		size_t len = strcspn(value, ",");
		size_t i = 0;

		while (i < lengthof(own_headers) &&
			   (strlen(own_headers[i].word) != len ||
				memcmp(own_headers[i].word, value, len) != 0))
			i++;
		if (i == lengthof(own_headers))
		{
			*hint =
				"Use none, or a list like topic,type,attempt of: all, topic, type, key, tenant, sequence, attempt, redelivery, test, idempotency-key. With all, sequence is named besides: all,sequence.";
			return "outbox_headers names a header that there is not";
		}
		sends |= own_headers[i].sends;
		value += len;
		if (*value == ',')
			value++;
	}
	p->sends = sends;
	return NULL;
}

/* One of a few words.  'which' is its number. */
static const char *
set_word(const char *value, const char *const *words, int *which, const char *hint_is,
		 const char **hint)
{
	for (int i = 0; words[i]; i++)
		if (strcmp(value, words[i]) == 0)
		{
			*which = i;
			return NULL;
		}
	*hint = hint_is;
	return "an entry about signatures has a value that is not known";
}

/* Bytes that a query may have outside of its places: RFC 3986, 3.4. */
static bool
query_text_valid(const char *value)
{
	bool inside = false;

	for (const char *c = value; *c; c++)
	{
		if (*c == '{' || *c == '}')
			inside = *c == '{';
		else if (*c == '%' && !inside)
		{
			if (!isxdigit((unsigned char) c[1]) || !isxdigit((unsigned char) c[2]))
				return false;
		}
		else if (!isalnum((unsigned char) *c) &&
				 strchr("-._~!$&'()*+,;=:@/?", *c) == NULL)
			return false;
	}
	return true;
}

static const char *
set_query(OutboxProfile *p, const char *value, const char **hint)
{
	static const char *const places[] = {"{id}",  "{topic}",  "{type}",
										 "{key}", "{tenant}", NULL};

	if (value[0] == '\0' || !is_printable(value, QUERY_MAX) || !query_text_valid(value) ||
		!places_valid(value, places))
	{
		*hint =
			"Write it like t={topic}&k={key}, without a question mark before it, in at most 512 characters. {id}, {topic}, {type}, {key} and {tenant} may occur once each. Percent-encode all others that a URL cannot have.";
		return "query is not valid";
	}
	p->query = value;
	return NULL;
}

const char *
outbox_profile_set(OutboxProfile *p, const char *name, const char *value,
				   const char **hint)
{
	static const char *const hashes[] = {"sha256", "sha512", "sha1", NULL};
	static const char *const encodings[] = {"base64", "hex", NULL};
	static const char *const keys[] = {"bytes", "text", NULL};
	int						 which = 0;
	const char				*problem = NULL;

	if (strcmp(name, "signature_header") == 0)
		return set_header(&p->signature_header, value, hint);
	if (strcmp(name, "id_header") == 0)
		return set_header(&p->id_header, value, hint);
	if (strcmp(name, "timestamp_header") == 0)
		return set_header(&p->timestamp_header, value, hint);
	if (strcmp(name, "type_header") == 0)
		return set_header(&p->type_header, value, hint);
	if (strcmp(name, "signed") == 0)
		return set_signed(p, value, hint);
	if (strcmp(name, "signature_value") == 0)
		return set_value(&p->value, value, hint);
	if (strcmp(name, "signature_next") == 0)
	{
		p->next = NULL;
		return value[0] == '\0' ? NULL : set_value(&p->next, value, hint);
	}
	if (strcmp(name, "signature_hash") == 0)
	{
		problem = set_word(value, hashes, &which, "Use sha256, sha512 or sha1.", hint);
		p->hash = (OutboxHash) which;
	}
	else if (strcmp(name, "signature_encoding") == 0)
	{
		problem = set_word(value, encodings, &which, "Use base64 or hex.", hint);
		p->hex = which == 1;
	}
	else if (strcmp(name, "signature_key") == 0)
	{
		problem = set_word(
			value, keys, &which,
			"Use bytes, those that whsec_ is followed by in base64, or text, the whole secret as it is.",
			hint);
		p->text_key = which == 1;
	}
	else if (strcmp(name, "outbox_headers") == 0)
		problem = set_own_headers(p, value, hint);
	else if (strcmp(name, "user_agent") == 0)
	{
		if (value[0] == '\0' || !is_printable(value, AGENT_MAX))
		{
			*hint =
				"Use at most 100 characters of printable ASCII. It is added to outbox's own.";
			return "user_agent is not valid";
		}
		p->agent = value;
	}
	else if (strcmp(name, "query") == 0)
		problem = set_query(p, value, hint);
	return problem;
}

const char *
outbox_profile_check(const OutboxProfile *p, const char **hint)
{
	const char *names[] = {p->id_header, p->timestamp_header, p->type_header,
						   p->signature_header};

	for (size_t i = 0; i < lengthof(names); i++)
		for (size_t j = 0; j < i; j++)
			if (names[i] && names[j] &&
				outbox_header_name_is(names[i], strlen(names[i]), names[j]))
			{
				*hint =
					"Give each of them a name of its own, or an empty one: it is not sent then.";
				return "two of the headers in config have the same name";
			}
	return NULL;
}

bool
outbox_profile_has_header(const OutboxProfile *p, const char *name, size_t len)
{
	const char *names[] = {p->id_header, p->timestamp_header, p->type_header,
						   p->signature_header};

	for (size_t i = 0; i < lengthof(names); i++)
		if (names[i] && outbox_header_name_is(name, len, names[i]))
			return true;
	return false;
}
