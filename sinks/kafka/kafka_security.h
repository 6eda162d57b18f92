#ifndef OUTBOX_KAFKA_SECURITY_H
#define OUTBOX_KAFKA_SECURITY_H

#include <librdkafka/rdkafka.h>
#include <stdbool.h>
#include <stddef.h>

#include "kafka_url.h"
#include "transport/transport.h"

/* The names of config and credentials that are about it, in this order. */
typedef enum KafkaSecurityOption
{
	KAFKA_SASL,
	KAFKA_REGION,
	KAFKA_ROLE,		/* it has the keys of the machine's role */
	KAFKA_USERNAME, /* the first one of credentials */
	KAFKA_ACCESS_KEY_ID,
	KAFKA_PASSWORD, /* the first one that is secret */
	KAFKA_TOKEN,
	KAFKA_CLIENT_CERTIFICATE,
	KAFKA_CLIENT_KEY,
	KAFKA_SECRET_ACCESS_KEY,
	KAFKA_SESSION_TOKEN,
	KAFKA_SECURITY_OPTIONS
} KafkaSecurityOption;

/* Values, malloc'd.  NULL: not set. */
typedef struct KafkaSecurity
{
	char *values[KAFKA_SECURITY_OPTIONS];

	/* Of an instance of librdkafka, not of an endpoint */
	bool	 token_wanted; /* librdkafka has none, or the one that it has ends soon */
	char	*made_token;   /* for MSK (NULL: none yet) */
	unsigned role_version; /* of the keys that it was made with */
} KafkaSecurity;

extern const char *const kafka_credential_names[];

/*
 * Returns the problem with the target's options, static text, and a hint.  NULL: none.
 * Of credentials only the names are looked at.
 */
extern const char *kafka_security_check(const OutboxTarget *target, const KafkaUrl *url,
										OutboxAdvice *advice);

/*
 * True if both log in in the same way: a mechanism that sends a password takes it from one
 * that only proves it, and a token for MSK is for the region.
 */
extern bool kafka_security_same_login(const OutboxTarget *a, const OutboxTarget *b);

/* Once per process, before the functions below. */
extern void kafka_security_init(void);

/* Copies the target's.  Returns the problem, static text.  NULL: none. */
extern const char *kafka_security_read(KafkaSecurity	  *security,
									   const OutboxTarget *target, const KafkaUrl *url);

/* Copies the values.  False: out of memory, and nothing is copied. */
extern bool kafka_security_copy(KafkaSecurity *to, const KafkaSecurity *from);

/* Overwrites and frees them. */
extern void kafka_security_clear(KafkaSecurity *security);

extern bool kafka_security_equal(const KafkaSecurity *a, const KafkaSecurity *b);

/* Sets the properties.  False: 'reason' says why not, without any value. */
extern bool kafka_security_configure(rd_kafka_conf_t *conf, const KafkaSecurity *security,
									 bool encrypted, char *reason, size_t size);

/* An instance of librdkafka begins and ends to use it. */
extern void kafka_security_begin(KafkaSecurity *security);
extern void kafka_security_end(const KafkaSecurity *security);

/*
 * Gives librdkafka a token, if it wants one, or if the role has other keys than before.
 * If that fails, writes the reason, and token_wanted stays true.
 */
extern void kafka_security_renew_token(rd_kafka_t *rk, KafkaSecurity *security,
									   char *reason, size_t size);

/* The role has no keys, so nothing is sent.  Writes why.  False: that is not so. */
extern bool kafka_security_lacks_keys(const KafkaSecurity *security, char *reason,
									  size_t size);

/* Brokers have refused it. */
extern void kafka_security_refused(const KafkaSecurity *security);

/* True if a broker, as librdkafka names it, may be logged in to.  Any thread may ask. */
extern bool kafka_security_may_log_in(const KafkaSecurity *security, const char *broker);

/*
 * Writes librdkafka's text of an error, without the credentials that a broker may have
 * repeated.  'refused': authentication has failed.  An older librdkafka may be the
 * reason, which lacks a feature that Kafka 4 wants.
 */
extern void kafka_security_words(const KafkaSecurity *security, bool refused,
								 const char *words, int len, char *reason, size_t size);

#endif /* OUTBOX_KAFKA_SECURITY_H */
