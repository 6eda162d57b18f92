/*
 * outbox.h
 *	  What every room of the extension may know: names, limits, settings.
 *
 * Nothing here has behaviour.  A room's own header says what it offers.
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "postgres.h"

#include "datatype/timestamp.h"

#define OUTBOX_VERSION "1.0"
#define OUTBOX_SCHEMA "outbox"
#define OUTBOX_EXTENSION "outbox"

/* Limits that the documents state. All in bytes. */
#define OUTBOX_MAX_TOPIC 255
#define OUTBOX_MAX_TYPE 255
#define OUTBOX_MAX_KEY 1024
#define OUTBOX_MAX_DEDUP_KEY 1024
#define OUTBOX_MAX_HEADERS 8192	/* names and values of one event together */

/*
 * Some receivers read 100 lines of header and the empty line among them (Python's
 * http.server).  Ours are 15, those of cloudevents-binary 23, and there an event's
 * are sent twice: 23 + 2 * 30 + 15 = 98.
 */
#define OUTBOX_MAX_EVENT_HEADERS 30
#define OUTBOX_MAX_ENDPOINT_HEADERS 15
#define OUTBOX_MAX_NESTING 512	/* objects and arrays of a payload in one another */

/* The log is a fixed set of tables, used in turn; see retention.c. */
#define OUTBOX_LOG_PIECES 3

/* Settings (outbox.c defines them; units as in pg_settings). */
extern bool outbox_enabled;
extern char *outbox_instance_name;
extern char *outbox_source;
extern char *outbox_allowed_networks;
extern char *outbox_worker_role;
extern int	outbox_workers_per_database;
extern int	outbox_worker_max_in_flight;
extern int	outbox_worker_memory;	/* MB */
extern int	outbox_wakeup_interval; /* ms */
extern int	outbox_settle_interval; /* ms */
extern int	outbox_max_payload_size;	/* bytes */
extern int	outbox_dedup_window;	/* s */
extern int	outbox_retention;	/* s */
extern int	outbox_attempts_retention;	/* s */
extern int	outbox_max_backlog_size;	/* MB; -1: no limit */
extern int	outbox_log_attempts;
extern char *outbox_ssl_ca_file;
extern char *outbox_ssl_cert_file;
extern char *outbox_ssl_key_file;
extern int	outbox_ssl_min_protocol_version;
extern char *outbox_proxy;
extern char *outbox_wait_for_standbys;
extern char *outbox_secret_key_file;

typedef enum OutboxLogAttempts
{
	OUTBOX_LOG_ATTEMPTS_NONE,
	OUTBOX_LOG_ATTEMPTS_FAILURES,
	OUTBOX_LOG_ATTEMPTS_ALL
} OutboxLogAttempts;

/* TLS protocol floor, in the order of the protocols */
typedef enum OutboxTlsVersion
{
	OUTBOX_TLS_1_2,
	OUTBOX_TLS_1_3
} OutboxTlsVersion;

#endif							/* OUTBOX_H */
