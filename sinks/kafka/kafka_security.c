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

#include "../aws/aws_signer.h"
#include "../sink.h"
#include "fmgr.h"
#include "kafka_msk.h"
#include "utils/guc.h"

/* The first librdkafka whose SCRAM Kafka 4 accepts. */
#define SCRAM_FIXED 0x020601ff

/* librdkafka asks for the token again when most of this is over. */
#define TOKEN_LIFETIME 3600 /* s */

#define MSK "AWS_MSK_IAM"
#define NO_SIGNER "AWS_MSK_IAM needs the sink aws in outbox.sinks, which makes its tokens"

/* In the order of KafkaSecurityOption */
static const char *const names[] = {"sasl",			 "region",
									"credentials",	 "username",
									"access_key_id", "password",
									"token",		 "client_certificate",
									"client_key",	 "secret_access_key",
									"session_token", NULL};

const char *const kafka_credential_names[] =
	{"username",		   "password",		"token",
	 "client_certificate", "client_key",	"access_key_id",
	 "secret_access_key",  "session_token", NULL};

static const char *const mechanisms[] = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512",
										 "OAUTHBEARER", MSK};

StaticAssertDecl(lengthof(names) == KAFKA_SECURITY_OPTIONS + 1, "each option has a name");

static bool
is_scram(const char *mechanism)
{
	return strncmp(mechanism, "SCRAM", 5) == 0;
}

static bool
is_msk(const char *mechanism)
{
	return mechanism && strcmp(mechanism, MSK) == 0;
}

static void **signer_place;

void
kafka_security_init(void)
{
	signer_place = find_rendezvous_variable(AWS_SIGNER);
}

/* NULL: this worker does not have the sink for AWS. */
static const AwsSigner *
signer(void)
{
	return *signer_place;
}

/* ------------------------------------------------------------ checking */

/* True if a list that is separated by commas has it. */
static bool
has_item(const char *list, const char *item)
{
	for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
	{
		size_t len;

		p += strspn(p, " \t\r\n");
		len = strcspn(p, ", \t\r\n");
		if (len == strlen(item) && memcmp(p, item, len) == 0)
			return true;
	}
	return false;
}

/* Returns the setting that is missing, in words.  Any process may ask. */
static const char *
check_settings(bool of_role, const char **hint)
{
	const char *sinks = GetConfigOption("outbox.sinks", true, false);
	const char *role = GetConfigOption("outbox.aws_role", true, false);

	if (sinks == NULL || !has_item(sinks, "aws"))
	{
		*hint = "Add aws to outbox.sinks, then run SELECT pg_reload_conf().";
		return NO_SIGNER;
	}
	if (of_role && (role == NULL || strcmp(role, "none") == 0))
	{
		*hint =
			"Let an administrator set outbox.aws_role. Each endpoint may then do what the role of this machine may.";
		return "outbox.aws_role is none";
	}
	return NULL;
}

/* Returns the problem with an endpoint that logs in to MSK. */
static const char *
check_msk(const OutboxTarget *target, const KafkaUrl *url, const bool *has,
		  OutboxAdvice *advice)
{
	const char *role = sink_option(target->config, target->nconfig, names[KAFKA_ROLE]);
	char		region[KAFKA_MSK_REGION_MAX];
	const char *problem;

	advice->field = "config";
	if (!url->encrypted)
	{
		advice->hint = "Use a URL that begins with kafkas://.";
		return "AWS_MSK_IAM is for encrypted connections only";
	}
	advice->hint =
		"Pass credentials => '{\"access_key_id\": \"...\", \"secret_access_key\": \"...\"}', or \"credentials\": \"role\" in config.";
	if (role && strcmp(role, "role") != 0)
		return "credentials in config is not role";
	if (role &&
		(has[KAFKA_ACCESS_KEY_ID] || has[KAFKA_SECRET_ACCESS_KEY] ||
		 has[KAFKA_SESSION_TOKEN]))
		return "it has credentials, and those of a role, too";
	if (role == NULL && !(has[KAFKA_ACCESS_KEY_ID] && has[KAFKA_SECRET_ACCESS_KEY]))
	{
		advice->field = "credentials";
		return "credentials without access_key_id or secret_access_key";
	}
	problem = kafka_msk_region(url->brokers,
							   sink_option(target->config, target->nconfig,
										   names[KAFKA_REGION]),
							   role != NULL, region, &advice->hint);
	return problem ? problem : check_settings(role != NULL, &advice->hint);
}

const char *
kafka_security_check(const OutboxTarget *target, const KafkaUrl *url,
					 OutboxAdvice *advice)
{
	const char *sasl = sink_option(target->config, target->nconfig, names[KAFKA_SASL]);
	bool		has[KAFKA_SECURITY_OPTIONS];
	bool		known = false;
	bool		oauth;
	bool		msk = is_msk(sasl);

	for (int i = KAFKA_USERNAME; i < KAFKA_SECURITY_OPTIONS; i++)
		has[i] = sink_option(target->credentials, target->ncredentials, names[i]) != NULL;
	for (size_t i = 0; sasl && i < lengthof(mechanisms); i++)
		known = known || strcmp(sasl, mechanisms[i]) == 0;
	advice->field = "config";
	if (sasl && !known)
	{
		advice->hint =
			"Use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM.";
		return "sasl in config is no mechanism that it knows";
	}
	advice->field = "credentials";
	oauth = sasl && strcmp(sasl, "OAUTHBEARER") == 0;
	if (oauth && !has[KAFKA_TOKEN])
	{
		advice->hint = "Pass credentials => '{\"token\": \"...\"}'.";
		return "sasl is OAUTHBEARER, and credentials has no token";
	}
	if (sasl && !oauth && !msk && !(has[KAFKA_USERNAME] && has[KAFKA_PASSWORD]))
	{
		advice->hint =
			"Pass credentials => '{\"username\": \"...\", \"password\": \"...\"}'.";
		return "sasl needs username and password in credentials";
	}
	if ((has[KAFKA_USERNAME] || has[KAFKA_PASSWORD]) && (sasl == NULL || oauth || msk))
	{
		advice->hint =
			"Name the mechanism, as in config => '{\"sasl\": \"SCRAM-SHA-512\"}', or leave username and password out.";
		return "credentials has username or password, and no sasl in config uses them";
	}
	if (has[KAFKA_TOKEN] && !oauth)
	{
		advice->hint =
			"Use config => '{\"sasl\": \"OAUTHBEARER\"}', or leave the token out.";
		return "credentials has a token, and no sasl in config uses it";
	}
	if (!msk &&
		(has[KAFKA_ACCESS_KEY_ID] || has[KAFKA_SECRET_ACCESS_KEY] ||
		 has[KAFKA_SESSION_TOKEN] ||
		 sink_option(target->config, target->nconfig, names[KAFKA_REGION]) ||
		 sink_option(target->config, target->nconfig, names[KAFKA_ROLE])))
	{
		advice->hint =
			"Use config => '{\"sasl\": \"AWS_MSK_IAM\"}', or leave region and keys out.";
		return "it has a region or keys of AWS, and its sasl is not AWS_MSK_IAM";
	}
	if (has[KAFKA_CLIENT_CERTIFICATE] != has[KAFKA_CLIENT_KEY])
	{
		advice->hint = "Pass both, as PEM.";
		return "credentials has one of client_certificate and client_key";
	}
	if (has[KAFKA_CLIENT_KEY] && !url->encrypted)
	{
		advice->hint = "Use a URL that begins with kafkas://.";
		return "a client_certificate is for encrypted connections only";
	}
	if (sasl && is_scram(sasl) && rd_kafka_version() < SCRAM_FIXED)
		advice->notice =
			"this server has a librdkafka older than 2.6.1, whose SCRAM Kafka 4 refuses and Kafka 3 accepts. Events wait while it is refused";
	return msk ? check_msk(target, url, has, advice) : NULL;
}

bool
kafka_security_same_login(const OutboxTarget *a, const OutboxTarget *b)
{
	for (int i = 0; i < KAFKA_USERNAME; i++)
	{
		const char *of_a = sink_option(a->config, a->nconfig, names[i]);
		const char *of_b = sink_option(b->config, b->nconfig, names[i]);

		if (strcmp(of_a ? of_a : "", of_b ? of_b : "") != 0)
			return false;
	}
	return true;
}

/* -------------------------------------------------------------- copies */

const char *
kafka_security_read(KafkaSecurity *security, const OutboxTarget *target,
					const KafkaUrl *url)
{
	KafkaSecurity found = {.token_wanted = false};
	char		  region[KAFKA_MSK_REGION_MAX];
	const char	 *problem = NULL;
	const char	 *hint;

	for (int i = 0; i < KAFKA_SECURITY_OPTIONS; i++)
		found.values[i] = unconstify(char *,
									 i < KAFKA_USERNAME ?
										 sink_option(target->config, target->nconfig,
													 names[i]) :
										 sink_option(target->credentials,
													 target->ncredentials, names[i]));
	if (is_msk(found.values[KAFKA_SASL]))
	{
		problem = kafka_msk_region(url->brokers, found.values[KAFKA_REGION],
								   found.values[KAFKA_ROLE] != NULL, region, &hint);
		if (problem == NULL && signer() == NULL)
			problem = NO_SIGNER;
		found.values[KAFKA_REGION] = region;
	}
	if (problem == NULL && !kafka_security_copy(security, &found))
		problem = "out of memory";
	return problem;
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
		outbox_wipe(&security->values[i]);
	outbox_wipe(&security->made_token);
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
		[KAFKA_CLIENT_CERTIFICATE] = "ssl.certificate.pem",
		[KAFKA_CLIENT_KEY] = "ssl.key.pem",
		[KAFKA_SECURITY_OPTIONS] = NULL,
	};
	const char *sasl = security->values[KAFKA_SASL];
	const char *protocol = sasl ? (encrypted ? "sasl_ssl" : "sasl_plaintext") :
								  (encrypted ? "ssl" : "plaintext");

	for (int i = 0; i < KAFKA_SECURITY_OPTIONS; i++)
		if (properties[i] &&
			!set(conf, properties[i],
				 i == KAFKA_SASL && is_msk(sasl) ? "OAUTHBEARER" : security->values[i],
				 names[i], reason, size))
			return false;
	return set(conf, "security.protocol", protocol, "protocol", reason, size);
}

/* ------------------------------------------------------------ tokens */

static bool
has_role(const KafkaSecurity *security)
{
	return security->values[KAFKA_ROLE] != NULL;
}

void
kafka_security_begin(KafkaSecurity *security)
{
	const char *sasl = security->values[KAFKA_SASL];

	security->token_wanted = security->values[KAFKA_TOKEN] || is_msk(sasl);
	if (has_role(security))
		signer()->role_join();
}

void
kafka_security_end(const KafkaSecurity *security)
{
	if (has_role(security))
		signer()->role_leave();
}

/* The keys that it has itself */
static AwsKeys
keys_of(const KafkaSecurity *security)
{
	return (AwsKeys){.access_key_id = security->values[KAFKA_ACCESS_KEY_ID],
					 .secret_access_key = security->values[KAFKA_SECRET_ACCESS_KEY],
					 .session_token = security->values[KAFKA_SESSION_TOKEN]};
}

void
kafka_security_renew_token(rd_kafka_t *rk, KafkaSecurity *security, char *reason,
						   size_t size)
{
	unsigned	version = has_role(security) ? signer()->role_version() : 0;
	const char *token = security->values[KAFKA_TOKEN];
	int64		ends = time(NULL) + (token ? TOKEN_LIFETIME : AWS_MSK_LIFETIME);
	char		words[128];

	if (!security->token_wanted && (version == 0 || version == security->role_version))
		return;
	security->token_wanted = true;
	if (has_role(security) && version == 0)
		return; /* kafka_security_lacks_keys() says why */
	if (token == NULL)
	{
		AwsKeys keys = keys_of(security);

		outbox_wipe(&security->made_token);
		security->made_token = signer()->msk_token(has_role(security) ? NULL : &keys,
												   security->values[KAFKA_REGION]);
		token = security->made_token;
	}
	if (token == NULL)
		strlcpy(reason, "out of memory", size);
	else if (rd_kafka_oauthbearer_set_token(rk, token, ends * 1000, "outbox", NULL, 0,
											words,
											sizeof(words)) != RD_KAFKA_RESP_ERR_NO_ERROR)
		strlcpy(reason, "librdkafka does not take the token", size); /* words has it */
	else
	{
		security->token_wanted = false;
		security->role_version = version;
	}
}

bool
kafka_security_lacks_keys(const KafkaSecurity *security, char *reason, size_t size)
{
	if (!has_role(security) || signer()->role_version() > 0)
		return false;
	snprintf(reason, size, "MSK: %s", signer()->role_reason());
	return true;
}

void
kafka_security_refused(const KafkaSecurity *security)
{
	if (has_role(security))
		signer()->role_refused();
}

bool
kafka_security_may_log_in(const KafkaSecurity *security, const char *broker)
{
	return !has_role(security) ||
		kafka_msk_is_broker(broker, security->values[KAFKA_REGION]);
}

/* --------------------------------------------------------------- words */

static bool
has_credential(const KafkaSecurity *security, const char *words)
{
	AwsKeys keys = keys_of(security);

	if (is_msk(security->values[KAFKA_SASL]) &&
		signer()->gives_away(words, has_role(security) ? NULL : &keys,
							 security->made_token))
		return true;
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
