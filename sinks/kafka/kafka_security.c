/*
 * kafka_security.c
 *	  Owns how an endpoint authenticates itself, and its copies of credentials.
 *
 * These are all properties of librdkafka that an endpoint's config and credentials can
 * set.  None of them names a file, a program or a library.
 */
#include "postgres.h"

#include "kafka_security.h"

#include <time.h>

/* The first librdkafka whose SCRAM Kafka 4 accepts. */
#define SCRAM_FIXED 0x020601ff

/* librdkafka asks for the token again when most of this is over. */
#define TOKEN_LIFETIME ((int64) 3600 * 1000) /* ms */

/* In the order of KafkaSecurityOption.  The first one is of config. */
static const char *const names[] = {"sasl",	 "username",		   "password",
									"token", "client_certificate", "client_key",
									NULL};

const char *const kafka_credential_names[] = {"username",			"password",	  "token",
											  "client_certificate", "client_key", NULL};

static const char *const mechanisms[] = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512",
										 "OAUTHBEARER"};

StaticAssertDecl(lengthof(names) == KAFKA_SECURITY_OPTIONS + 1, "each option has a name");

static bool
is_scram(const char *mechanism)
{
	return strncmp(mechanism, "SCRAM", 5) == 0;
}

/* ------------------------------------------------------------ checking */

static const char *
find(const OutboxOption *options, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (strcmp(options[i].name, name) == 0)
			return options[i].value ? options[i].value : "";
	return NULL;
}

const char *
kafka_security_check(const OutboxTarget *target, bool encrypted, const char **hint,
					 const char **notice)
{
	const char *sasl = find(target->config, target->nconfig, names[KAFKA_SASL]);
	bool		has[KAFKA_SECURITY_OPTIONS];
	bool		known = false;
	bool		oauth;

	for (int i = KAFKA_USERNAME; i < KAFKA_SECURITY_OPTIONS; i++)
		has[i] = find(target->credentials, target->ncredentials, names[i]) != NULL;
	for (size_t i = 0; sasl && i < lengthof(mechanisms); i++)
		known = known || strcmp(sasl, mechanisms[i]) == 0;
	if (sasl && !known)
	{
		*hint = "Use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.";
		return "sasl in config is no mechanism that it knows";
	}
	oauth = sasl && strcmp(sasl, "OAUTHBEARER") == 0;
	if (oauth && !has[KAFKA_TOKEN])
	{
		*hint = "Pass credentials => '{\"token\": \"…\"}'.";
		return "sasl is OAUTHBEARER, and credentials has no token";
	}
	if (sasl && !oauth && !(has[KAFKA_USERNAME] && has[KAFKA_PASSWORD]))
	{
		*hint = "Pass credentials => '{\"username\": \"…\", \"password\": \"…\"}'.";
		return "sasl needs username and password in credentials";
	}
	if ((has[KAFKA_USERNAME] || has[KAFKA_PASSWORD]) && (sasl == NULL || oauth))
	{
		*hint =
			"Name the mechanism, as in config => '{\"sasl\": \"SCRAM-SHA-512\"}', or leave username and password out.";
		return "credentials has username or password, and no sasl in config uses them";
	}
	if (has[KAFKA_TOKEN] && !oauth)
	{
		*hint = "Use config => '{\"sasl\": \"OAUTHBEARER\"}', or leave the token out.";
		return "credentials has a token, and no sasl in config uses it";
	}
	if (has[KAFKA_CLIENT_CERTIFICATE] != has[KAFKA_CLIENT_KEY])
	{
		*hint = "Pass both, as PEM.";
		return "credentials has one of client_certificate and client_key";
	}
	if (has[KAFKA_CLIENT_KEY] && !encrypted)
	{
		*hint = "Use a URL that begins with kafkas://.";
		return "a client_certificate is for encrypted connections only";
	}
	if (sasl && is_scram(sasl) && rd_kafka_version() < SCRAM_FIXED)
		*notice =
			"this server has a librdkafka older than 2.6.1, whose SCRAM Kafka 4 refuses and Kafka 3 accepts. Events wait while it is refused";
	return NULL;
}

/* -------------------------------------------------------------- copies */

bool
kafka_security_read(KafkaSecurity *security, const OutboxTarget *target)
{
	KafkaSecurity found = {{NULL}};

	for (int i = 0; i < KAFKA_SECURITY_OPTIONS; i++)
		found.values[i] = unconstify(char *,
									 i == KAFKA_SASL ?
										 find(target->config, target->nconfig, names[i]) :
										 find(target->credentials, target->ncredentials,
											  names[i]));
	return kafka_security_copy(security, &found);
}

bool
kafka_security_copy(KafkaSecurity *to, const KafkaSecurity *from)
{
	bool done = true;

	memset(to, 0, sizeof(*to));
	for (int i = 0; i < KAFKA_SECURITY_OPTIONS; i++)
	{
		to->values[i] = from->values[i] ? strdup(from->values[i]) : NULL;
		done = done && (from->values[i] == NULL || to->values[i]);
	}
	if (!done)
		kafka_security_clear(to);
	return done;
}

void
kafka_security_clear(KafkaSecurity *security)
{
	for (int i = 0; i < KAFKA_SECURITY_OPTIONS; i++)
	{
		char *value = security->values[i];

		security->values[i] = NULL;
		if (value)
			explicit_bzero(value, strlen(value));
		free(value);
	}
}

bool
kafka_security_equal(const KafkaSecurity *a, const KafkaSecurity *b)
{
	for (int i = 0; i < KAFKA_SECURITY_OPTIONS; i++)
		if ((a->values[i] == NULL) != (b->values[i] == NULL) ||
			(a->values[i] && strcmp(a->values[i], b->values[i]) != 0))
			return false;
	return true;
}

/* --------------------------------------------------------------- using */

static bool
set(rd_kafka_conf_t *conf, const char *property, const char *value, const char *name,
	char *reason, size_t size)
{
	char words[128];

	if (value == NULL ||
		rd_kafka_conf_set(conf, property, value, words, sizeof(words)) ==
			RD_KAFKA_CONF_OK)
		return true;
	snprintf(reason, size, "librdkafka does not take the %s", name); /* words has it */
	return false;
}

bool
kafka_security_configure(rd_kafka_conf_t *conf, const KafkaSecurity *security,
						 bool encrypted, char *reason, size_t size)
{
	static const char *const properties[] = {
		[KAFKA_SASL] = "sasl.mechanism",
		[KAFKA_USERNAME] = "sasl.username",
		[KAFKA_PASSWORD] = "sasl.password",
		[KAFKA_TOKEN] = NULL,
		[KAFKA_CLIENT_CERTIFICATE] = "ssl.certificate.pem",
		[KAFKA_CLIENT_KEY] = "ssl.key.pem",
	};
	bool		sasl = security->values[KAFKA_SASL] != NULL;
	const char *protocol = sasl ? (encrypted ? "sasl_ssl" : "sasl_plaintext") :
								  (encrypted ? "ssl" : "plaintext");

	for (int i = 0; i < KAFKA_SECURITY_OPTIONS; i++)
		if (properties[i] &&
			!set(conf, properties[i], security->values[i], names[i], reason, size))
			return false;
	return set(conf, "security.protocol", protocol, "protocol", reason, size);
}

bool
kafka_security_set_token(rd_kafka_t *rk, const KafkaSecurity *security, char *reason,
						 size_t size)
{
	char			words[128];
	struct timespec now;

	if (security->values[KAFKA_TOKEN] == NULL)
		return true;
	clock_gettime(CLOCK_REALTIME, &now);
	if (rd_kafka_oauthbearer_set_token(rk, security->values[KAFKA_TOKEN],
									   (int64) now.tv_sec * 1000 + TOKEN_LIFETIME,
									   "outbox", NULL, 0, words,
									   sizeof(words)) == RD_KAFKA_RESP_ERR_NO_ERROR)
		return true;
	snprintf(reason, size, "librdkafka does not take the token");
	return false;
}

static bool
has_credential(const KafkaSecurity *security, const char *words)
{
	for (int i = KAFKA_PASSWORD; i < KAFKA_SECURITY_OPTIONS; i++)
		if (security->values[i] && strstr(words, security->values[i]))
			return true;
	return false;
}

void
kafka_security_words(const KafkaSecurity *security, bool refused, const char *words,
					 int len, char *reason, size_t size)
{
	static const char *const start = "SASL authentication error: ";
	const char				*sasl = security->values[KAFKA_SASL];
	const char				*rest = refused ? strstr(words, start) : NULL;
	int						 skip = rest ? (int) (rest - words + strlen(start)) : 0;

	if (has_credential(security, words))
	{
		words = "the broker's words are not shown, for they repeat a credential";
		len = (int) strlen(words);
		skip = 0;
	}

	/* views have room for the beginning only */
	if (skip >= len)
		skip = 0;
	if (!refused)
		snprintf(reason, size, "%.*s", len, words);
	else if (sasl && is_scram(sasl) && rd_kafka_version() < SCRAM_FIXED)
		snprintf(reason, size, "librdkafka %s cannot use SCRAM with Kafka 4, or: %.*s",
				 rd_kafka_version_str(), len - skip, words + skip);
	else
		snprintf(reason, size, "not authenticated: %.*s", len - skip, words + skip);
}
