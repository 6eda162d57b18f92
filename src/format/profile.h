#ifndef OUTBOX_PROFILE_H
#define OUTBOX_PROFILE_H

#include "format/signature.h"

/* Headers of outbox itself that a profile may leave out.  One bit each. */
typedef enum OutboxOwnHeader
{
	OUTBOX_SENDS_TOPIC = 1 << 0,
	OUTBOX_SENDS_TYPE = 1 << 1,
	OUTBOX_SENDS_KEY = 1 << 2,
	OUTBOX_SENDS_TENANT = 1 << 3,
	OUTBOX_SENDS_ATTEMPT = 1 << 4,
	OUTBOX_SENDS_REDELIVERY = 1 << 5,
	OUTBOX_SENDS_TEST = 1 << 6,
	OUTBOX_SENDS_IDEMPOTENCY_KEY = 1 << 7,
	OUTBOX_SENDS_ALL = (1 << 8) - 1,
	OUTBOX_SENDS_SEQUENCE = 1 << 8 /* it counts all events, so it has to be asked for */
} OutboxOwnHeader;

/* A text that is NULL is not sent.  The texts are static, or belong to the settings. */
typedef struct OutboxProfile
{
	const char *name;
	const char *id_header;
	const char *timestamp_header;
	const char *type_header;
	const char *signature_header;
	const char *signed_text; /* with {id} and {timestamp}, and {body} at its end */
	const char *value;		 /* with {signature}: the value of the signature's header */
	const char *next; /* added to it for the former secret; NULL: that does not sign */
	OutboxHash	hash;
	bool		hex;	  /* false: base64 */
	bool		text_key; /* the key is the text of the secret, not the bytes in it */
	int			sends;	  /* bits of OutboxOwnHeader */
	const char *agent;	  /* added to User-Agent */
	const char *query;	  /* added to the URL, with {topic} and others */
} OutboxProfile;

/* Standard Webhooks: of an endpoint whose config says nothing else. */
extern const OutboxProfile outbox_profile_standard;

/* The entries of config that are read here, and the end of the list. */
#define OUTBOX_PROFILE_OPTIONS \
	"signature", "signature_header", "id_header", "timestamp_header", "type_header", \
		"signed", "signature_value", "signature_next", "signature_hash", \
		"signature_encoding", "signature_key", "outbox_headers", "user_agent", "query"

/*
 * find returns the profile of that name, or NULL.  set changes a profile by an entry of
 * config: it returns the problem with the value, and a hint; NULL: none.  Other entries
 * change nothing.  check returns the problem with the whole, when all entries are set.
 */
extern const OutboxProfile *outbox_profile_find(const char *name);
extern const char		   *outbox_profile_set(OutboxProfile *p, const char *name,
											   const char *value, const char **hint);
extern const char *outbox_profile_check(const OutboxProfile *p, const char **hint);

#define OUTBOX_PROFILE_NAMES_HINT \
	"Use standard, ed25519, svix, stripe, github, shopify, slack or none."

/* The form of the secrets that sign with it. */
extern OutboxSecretForm outbox_profile_secret_form(const OutboxProfile *p);

/* True if requests with the profile have a header of its own with that name. */
extern bool outbox_profile_has_header(const OutboxProfile *p, const char *name,
									  size_t len);

/*
 * Write the text of a signature's header, at most OUTBOX_SIGNATURES_MAX bytes, or of a
 * query, at most outbox_profile_query_size().  Return its length.
 */
#define OUTBOX_SIGNATURES_MAX 1024
extern size_t outbox_profile_sign(const OutboxProfile *p, const OutboxKey *keys,
								  int nkeys, const char *id, size_t id_len,
								  int64 timestamp, const char *body, size_t body_len,
								  char *out);

/* A value for a place of a query, which is empty if it is NULL. */
typedef struct OutboxQueryValue
{
	const char *name; /* "{topic}" */
	const char *value;
	size_t		len;
} OutboxQueryValue;

extern size_t outbox_profile_query_size(const OutboxProfile	   *p,
										const OutboxQueryValue *values, int n);
extern size_t outbox_profile_query(const OutboxProfile *p, const OutboxQueryValue *values,
								   int n, char *out);

#endif /* OUTBOX_PROFILE_H */
