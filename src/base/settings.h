/*
 * settings.h
 *	  The settings of the extension, as they are in postgresql.conf.
 *
 * doc/settings.md explains each.  outbox.c defines them.
 */
#ifndef OUTBOX_SETTINGS_H
#define OUTBOX_SETTINGS_H

#include "base/outbox.h"

typedef enum OutboxLogAttempts
{
	OUTBOX_LOG_ATTEMPTS_NONE,
	OUTBOX_LOG_ATTEMPTS_FAILURES,
	OUTBOX_LOG_ATTEMPTS_ALL,
	OUTBOX_LOG_ATTEMPTS_ANSWERS /* all, and also the answers of successes */
} OutboxLogAttempts;

/* Lowest version of TLS, in the order of the versions. */
typedef enum OutboxTlsVersion
{
	OUTBOX_TLS_1_2,
	OUTBOX_TLS_1_3
} OutboxTlsVersion;

/* Where the sink for AWS gets keys of a role from, which reads it by its name. */
typedef enum OutboxAwsRole
{
	OUTBOX_AWS_ROLE_NONE,
	OUTBOX_AWS_ROLE_IMDS,
	OUTBOX_AWS_ROLE_CONTAINER,
	OUTBOX_AWS_ROLE_WEB_IDENTITY
} OutboxAwsRole;

extern bool	 outbox_enabled;
extern char *outbox_instance_name;
extern char *outbox_source;
extern char *outbox_webhook_origin;
extern char *outbox_allowed_networks;
extern char *outbox_worker_role;
extern bool	 outbox_require_event_types;
extern char *outbox_actor; /* read in SQL */
extern int	 outbox_workers_per_database;
extern int	 outbox_worker_max_in_flight;
extern int	 outbox_worker_max_connections;
#define OUTBOX_CONNECTIONS_MAX 16384	/* if outbox.worker_max_connections is -1 */
extern int	 outbox_worker_memory;		/* MB */
extern int	 outbox_wakeup_interval;	/* ms */
extern int	 outbox_settle_interval;	/* ms */
extern int	 outbox_max_payload_size;	/* bytes */
extern int	 outbox_dedup_window;		/* s */
extern int	 outbox_failing_after;		/* s */
extern int	 outbox_retention;			/* s */
extern int	 outbox_attempts_retention; /* s */
extern int	 outbox_max_backlog_size;	/* MB; -1: no limit */
extern int	 outbox_log_attempts;
extern int	 outbox_log_answer_size; /* bytes */
extern char *outbox_ssl_ca_file;
extern char *outbox_ssl_cert_file;
extern char *outbox_ssl_key_file;
extern int	 outbox_ssl_min_protocol_version;
extern char *outbox_proxy;
extern char *outbox_wait_for_standbys;
extern char *outbox_secret_key_file;
extern char *outbox_secrets_directory;
extern int	 outbox_aws_role;
extern char *outbox_sinks;

/* How many files the process may open.  INT_MAX: so many, or more. */
extern int outbox_open_files(void);

#endif /* OUTBOX_SETTINGS_H */
