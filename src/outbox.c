/*
 * outbox.c
 *	  Owns the steps when the library is loaded, and the values that settings
 *	  accept.
 */
#include "postgres.h"

#include <limits.h>

#include "access/parallel.h"
#include "utils/guc.h"

#include "base/outbox.h"
#include "base/compat.h"
#include "base/settings.h"
#include "emit/emit.h"
#include "log/standbys.h"
#include "server/database_commands.h"
#include "server/launcher.h"
#include "server/shmem.h"
#include "store/seal.h"
#include "transport/address.h"
#include "transport/http/http.h"
#include "transport/sinks.h"

PG_MODULE_MAGIC;

static const struct config_enum_entry log_attempts_options[] =
	{{"answers", OUTBOX_LOG_ATTEMPTS_ANSWERS, false},
	 {"all", OUTBOX_LOG_ATTEMPTS_ALL, false},
	 {"failures", OUTBOX_LOG_ATTEMPTS_FAILURES, false},
	 {"none", OUTBOX_LOG_ATTEMPTS_NONE, false},
	 {NULL, 0, false}};

static const struct config_enum_entry tls_version_options[] = {{"TLSv1.2", OUTBOX_TLS_1_2,
																false},
															   {"TLSv1.3", OUTBOX_TLS_1_3,
																false},
															   {NULL, 0, false}};

static const struct config_enum_entry aws_role_options[] =
	{{"none", OUTBOX_AWS_ROLE_NONE, false},
	 {"imds", OUTBOX_AWS_ROLE_IMDS, false},
	 {"container", OUTBOX_AWS_ROLE_CONTAINER, false},
	 {"web_identity", OUTBOX_AWS_ROLE_WEB_IDENTITY, false},
	 {NULL, 0, false}};

extern PGDLLEXPORT void _PG_init(void);

static bool loading; /* true while settings get their first values */

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/* The end of a check: false if there is a problem, which is reported with the hint. */
static bool
approve(const char *problem, const char *hint)
{
	if (problem == NULL)
		return true;
	GUC_check_errdetail("%s", problem);
	GUC_check_errhint("%s", hint);
	return false;
}

/*
 * A list that cannot be read is refused as a whole.  A part of it would allow
 * something else than the list.
 */
static bool
check_allowed_networks(char **newval, void **extra, GucSource source)
{
	OutboxNetworks *networks = outbox_guc_alloc(sizeof(OutboxNetworks));
	char			bad[128];

	*extra = networks;
	if (networks == NULL)
		return false;
	memset(networks, 0, sizeof(*networks));
	if (outbox_networks_parse(*newval ? *newval : "", networks, bad, sizeof(bad)))
		return true;

	*extra = NULL;
	outbox_guc_free(networks);
	GUC_check_errdetail(
		"\"%s\" is not an IP address or a CIDR block, or is one more than the %d that are allowed.",
		bad, OUTBOX_MAX_NETWORKS);
	GUC_check_errhint("Write a list such as '10.0.0.0/8, 192.168.1.7, fd00::/8'.");
	return false;
}

static void
assign_allowed_networks(const char *newval, void *extra)
{
	outbox_networks = extra;
}

/*
 * A proxy that cannot be used is refused, because requests must not be sent without
 * one then.
 */
static bool
check_proxy(char **newval, void **extra, GucSource source)
{
	return approve(
		*newval && **newval ? outbox_http_check_proxy(*newval) : NULL,
		"Write it as http://proxy.example:3128, and a % in a password as %25.");
}

/*
 * A source that is no URI reference (RFC 3986) would make every CloudEvent invalid.
 */
static bool
check_source(char **newval, void **extra, GucSource source)
{
	return approve(
		*newval == NULL ||
				strspn(*newval, LETTERS "-._~:/?#[]@!$&'()*+,;=%") == strlen(*newval) ?
			NULL :
			"It has a character that is not allowed in a URI.",
		"Write a URI or a path such as '/shop/orders', with other characters percent-encoded.");
}

/* It is a header's value, and a name that receivers compare. */
static bool
check_webhook_origin(char **newval, void **extra, GucSource source)
{
	size_t len = strlen(*newval);

	return approve(len <= 253 && strspn(*newval, LETTERS ".-") == len ?
					   NULL :
					   "It is not the name of a host.",
				   "Use a name like events.shop.example.");
}

static bool
check_sinks(char **newval, void **extra, GucSource source)
{
	return approve(outbox_sinks_problem(*newval),
				   "Write a list such as 'webhook, kafka'.");
}

/* Returns the problem with a file or directory of secrets ('what'). */
static const char *
path_problem(const char *what, const char *path)
{
	const char *problem = path && *path ? outbox_private_path_problem(path) : NULL;

	return problem ? psprintf("The %s %s.", what, problem) : NULL;
}

static bool
check_secrets_directory(char **newval, void **extra, GucSource source)
{
	return approve(
		path_problem("directory", *newval),
		"Name a directory outside the data directory, by its absolute path. Its files may be used as credentials.");
}

/*
 * ALTER SYSTEM and a reload refuse a path that cannot be used.  A server that
 * starts keeps it: if it were reset to '', secrets would be stored in clear text.
 * With a file that it must not read the server seals nothing, and reports that.
 */
static bool
check_secret_key_file(char **newval, void **extra, GucSource source)
{
	return approve(
		loading || InitializingParallelWorker ? NULL : path_problem("file", *newval),
		"Name a file outside the data directory, by its absolute path. A copy of the data must not include the key.");
}

/* With 0 every event that waits for a moment would become a dead letter. */
static bool
check_max_backlog_size(int *newval, void **extra, GucSource source)
{
	return approve(*newval != 0 ? NULL : "With 0, no event could wait at all.",
				   "Use at least 1 MB, or -1 for no limit.");
}

/*
 * All settings belong to the server.  A session that could change one would change
 * the rules for its own events only, which the configuration file would not show.
 */
static void
define_int(const char *name, const char *short_desc, const char *long_desc, int *variable,
		   int min, int max, int flags)
{
	DefineCustomIntVariable(name, short_desc, long_desc, variable, *variable, min, max,
							PGC_SIGHUP, flags, NULL, NULL, NULL);
}

static void
define_string(const char *name, const char *short_desc, const char *long_desc,
			  char **variable, int flags, GucStringCheckHook check)
{
	DefineCustomStringVariable(name, short_desc, long_desc, variable, "", PGC_SIGHUP,
							   flags, check, NULL, NULL);
}

static void
define_operation_settings(void)
{
	DefineCustomBoolVariable(
		"outbox.enabled", "Delivers events.",
		"While it is off, events are kept. They are delivered when it is on again.",
		&outbox_enabled, outbox_enabled, PGC_SIGHUP, 0, NULL, NULL, NULL);
	define_string(
		"outbox.instance_name", "The name of this server.",
		"When set, only a log that was made or adopted under this name is delivered. A physical copy with another name sends nothing.",
		&outbox_instance_name, 0, NULL);
	define_string("outbox.source", "The source attribute of CloudEvents.",
				  "Empty: /outbox/ and the name of the database.", &outbox_source, 0,
				  check_source);
	define_string("outbox.webhook_origin",
				  "The name by which receivers know this server.",
				  "Sent to receivers that are asked by OPTIONS whether they want events.",
				  &outbox_webhook_origin, 0, check_webhook_origin);
	define_string("outbox.worker_role", "The role that workers run as.",
				  "Empty: the owner of the extension.", &outbox_worker_role, 0, NULL);
	define_int(
		"outbox.workers_per_database",
		"Workers that each database with the extension has.",
		"They divide the endpoints among themselves. Each takes one of max_worker_processes. No database gets a second one while another has none.",
		&outbox_workers_per_database, 1, OUTBOX_MAX_WORKERS, 0);
	define_int("outbox.worker_max_in_flight",
			   "Requests that one worker has in flight at most.", NULL,
			   &outbox_worker_max_in_flight, 1, 16384, 0);
	define_int(
		"outbox.worker_max_connections",
		"Connections of one worker that stay open at most.",
		"-1: most of the file descriptors that the process may have, at most 16384.",
		&outbox_worker_max_connections, -1, 1000000, 0);
	define_int(
		"outbox.worker_memory",
		"The memory of one worker for events, bodies of requests and answers.",
		"When it is used up, an endpoint with requests in flight waits. A tenant without any may send one, and so may an endpoint without a tenant.",
		&outbox_worker_memory, 16, 1024 * 1024, GUC_UNIT_MB);
	define_int(
		"outbox.wakeup_interval",
		"How long a worker sleeps at most when nothing wakes it.",
		"The commit of a transaction that emitted wakes the workers. This is for a session that ends before it has done so.",
		&outbox_wakeup_interval, 10, 60 * 1000, GUC_UNIT_MS);
	define_int("outbox.settle_interval",
			   "How long outcomes are collected before they are written together.",
			   "What was delivered in this time before a crash is delivered again.",
			   &outbox_settle_interval, 1, 1000, GUC_UNIT_MS);
	DefineCustomStringVariable(
		"outbox.wait_for_standbys",
		"The standbys that must have an event on disk before it is sent.",
		"A number, a list of application names, or a number and a list in parentheses. 0 means only those of synchronous_standby_names.",
		&outbox_wait_for_standbys, "0", PGC_SIGHUP, 0, outbox_standbys_check,
		outbox_standbys_assign, NULL);
	DefineCustomStringVariable(
		"outbox.sinks", "The kinds of endpoints that workers deliver to.",
		"A list of names. webhook is HTTP. Any other name is that of a library outbox_NAME, which workers load.",
		&outbox_sinks, "webhook", PGC_SIGHUP, 0, check_sinks, NULL, NULL);
	define_int("outbox.max_payload_size", "The largest payload of an event, inclusive.",
			   NULL, &outbox_max_payload_size, 1024, 64 * 1024 * 1024, GUC_UNIT_BYTE);
	define_int(
		"outbox.dedup_window",
		"How long a deduplication key stands for the event that it was first used for.",
		"Within this time, emitting with the same key and topic returns the id of that event and emits nothing.",
		&outbox_dedup_window, 1, INT_MAX, GUC_UNIT_S);
	define_int(
		"outbox.failing_after",
		"How long an endpoint fails without a success before outbox.failing is emitted.",
		NULL, &outbox_failing_after, 1, INT_MAX, GUC_UNIT_S);
	DefineCustomBoolVariable(
		"outbox.require_event_types",
		"Only topics that are listed in outbox.event_types may be emitted.", NULL,
		&outbox_require_event_types, outbox_require_event_types, PGC_SUSET, 0, NULL, NULL,
		NULL);
	DefineCustomStringVariable(
		"outbox.actor", "The person or service that outbox.endpoint_audit names.",
		"An application sets it for a transaction that changes endpoints.", &outbox_actor,
		"", PGC_USERSET, 0, NULL, NULL, NULL);
	define_int("outbox.retention", "How long events are kept after they were emitted.",
			   "Undelivered events are kept longer, whatever their age.",
			   &outbox_retention, 1, INT_MAX, GUC_UNIT_S);
	define_int("outbox.attempts_retention", "How long the log of attempts is kept.", NULL,
			   &outbox_attempts_retention, 1, INT_MAX, GUC_UNIT_S);
	DefineCustomIntVariable(
		"outbox.max_backlog_size", "The part of the log that an endpoint may retain.",
		"Beyond it, the oldest events that the endpoint has yet to get become dead letters. -1 means no limit.",
		&outbox_max_backlog_size, outbox_max_backlog_size, -1, INT_MAX, PGC_SIGHUP,
		GUC_UNIT_MB, check_max_backlog_size, NULL, NULL);
	DefineCustomEnumVariable("outbox.log_attempts",
							 "Which attempts are written to outbox.attempts.", NULL,
							 &outbox_log_attempts, outbox_log_attempts,
							 log_attempts_options, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.log_answer_size",
							"The bytes of an answer's body that are kept.",
							"Its headers are kept, too. 0 keeps neither.",
							&outbox_log_answer_size, outbox_log_answer_size, 0, 16 * 1024,
							PGC_SIGHUP, GUC_UNIT_BYTE, NULL, NULL, NULL);
}

static void
define_network_settings(void)
{
	DefineCustomStringVariable(
		"outbox.allowed_networks",
		"Addresses that are not public and to which requests may be sent.",
		"A comma-separated list of addresses and CIDR blocks. Plain http is sent to these only.",
		&outbox_allowed_networks, "", PGC_SIGHUP, 0, check_allowed_networks,
		assign_allowed_networks, NULL);
	define_string("outbox.proxy", "The proxy that all requests go through.",
				  "A URL. Empty: none, whatever the environment says.", &outbox_proxy,
				  GUC_SUPERUSER_ONLY, check_proxy);
	define_string("outbox.ssl_ca_file",
				  "The file of certificate authorities that receivers are verified with.",
				  "Empty: the authorities of the system.", &outbox_ssl_ca_file, 0, NULL);
	define_string("outbox.ssl_cert_file",
				  "The file of the client certificate that is shown to receivers.", NULL,
				  &outbox_ssl_cert_file, 0, NULL);
	define_string("outbox.ssl_key_file",
				  "The file of the client certificate's private key.", NULL,
				  &outbox_ssl_key_file, 0, NULL);
	define_string(
		"outbox.secret_key_file",
		"The file of keys that seal the secrets of endpoints in the tables.",
		"The first key seals, and all of them open. Empty: secrets are stored in clear text.",
		&outbox_secret_key_file, GUC_SUPERUSER_ONLY, check_secret_key_file);
	define_string(
		"outbox.secrets_directory",
		"The directory of the files that credentials of endpoints may name.",
		"Each file in it can be sent by a role that may create endpoints. Empty: no file can be named.",
		&outbox_secrets_directory, GUC_SUPERUSER_ONLY, check_secrets_directory);
	DefineCustomEnumVariable(
		"outbox.aws_role",
		"Where endpoints of AWS may get the keys of this machine's role from.",
		"Such an endpoint may do what the role may.", &outbox_aws_role, outbox_aws_role,
		aws_role_options, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.ssl_min_protocol_version",
							 "The lowest version of TLS that is used.", NULL,
							 &outbox_ssl_min_protocol_version,
							 outbox_ssl_min_protocol_version, tls_version_options,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
}

void
_PG_init(void)
{
	loading = true;
	define_operation_settings();
	define_network_settings();
	loading = false;
	MarkGUCPrefixReserved("outbox");
	outbox_emit_init();

	/*
	 * A session has loaded the library on a server that did not preload it.  Its
	 * events are kept, and there is no worker to be woken.
	 */
	if (!process_shared_preload_libraries_in_progress)
		return;

	outbox_shmem_init();
	outbox_database_commands_init();
	outbox_launcher_register();
}
