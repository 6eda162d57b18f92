/*
 * kafka_security.h
 *	  What an endpoint authenticates itself with: SASL, and a client's certificate.
 */
#ifndef OUTBOX_KAFKA_SECURITY_H
#define OUTBOX_KAFKA_SECURITY_H

#include <librdkafka/rdkafka.h>
#include <stdbool.h>
#include <stddef.h>

#include "transport/transport.h"

/* The names of config and credentials that are about it, in this order. */
typedef enum KafkaSecurityOption
{
	KAFKA_SASL,
	KAFKA_USERNAME,
	KAFKA_PASSWORD,
	KAFKA_TOKEN,
	KAFKA_CLIENT_CERTIFICATE,
	KAFKA_CLIENT_KEY,
	KAFKA_SECURITY_OPTIONS
} KafkaSecurityOption;

/* Values, malloc'd; NULL: not set. */
typedef struct KafkaSecurity
{
	char *values[KAFKA_SECURITY_OPTIONS];
} KafkaSecurity;

extern const char *const kafka_credential_names[];

/*
 * Returns what is wrong with the target's options, static text, and a hint; NULL:
 * nothing.  Of credentials only the names are looked at.
 */
extern const char *kafka_security_check(const OutboxTarget *target, bool encrypted,
										const char **hint, const char **notice);

/* Copies them.  False: out of memory, and nothing is copied. */
extern bool kafka_security_read(KafkaSecurity *security, const OutboxTarget *target);
extern bool kafka_security_copy(KafkaSecurity *to, const KafkaSecurity *from);

/* Overwrites and frees them. */
extern void kafka_security_clear(KafkaSecurity *security);

extern bool kafka_security_equal(const KafkaSecurity *a, const KafkaSecurity *b);

/* Sets the properties.  False: 'reason' says why not, without any value. */
extern bool kafka_security_configure(rd_kafka_conf_t *conf, const KafkaSecurity *security,
									 bool encrypted, char *reason, size_t size);

/* Gives librdkafka the token, if there is one.  False: 'reason' says why not. */
extern bool kafka_security_set_token(rd_kafka_t *rk, const KafkaSecurity *security,
									 char *reason, size_t size);

/*
 * Writes what librdkafka says of an error, without the credentials that a broker may
 * have repeated.  'refused': authentication has failed.  An older librdkafka may be the
 * reason, which cannot do what Kafka 4 wants.
 */
extern void kafka_security_words(const KafkaSecurity *security, bool refused,
								 const char *words, int len, char *reason, size_t size);

#endif /* OUTBOX_KAFKA_SECURITY_H */
