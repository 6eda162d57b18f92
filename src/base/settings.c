/*
 * settings.c
 *	  Owns the values of the settings, and of the limit of open files.
 */
#include "base/settings.h"

#include <limits.h>
#include <sys/resource.h>

bool  outbox_enabled = true;
char *outbox_instance_name = NULL;
char *outbox_source = NULL;
char *outbox_webhook_origin = NULL;
char *outbox_allowed_networks = NULL;
char *outbox_worker_role = NULL;
int	  outbox_workers_per_database = 1;
int	  outbox_worker_max_in_flight = 1024;
int	  outbox_worker_max_connections = -1;
int	  outbox_worker_memory = 256;
int	  outbox_wakeup_interval = 1000;
int	  outbox_settle_interval = 10;
int	  outbox_max_payload_size = 1024 * 1024;
int	  outbox_dedup_window = 24 * 3600;
int	  outbox_failing_after = 3600;
bool  outbox_require_event_types = false;
char *outbox_actor = NULL;
int	  outbox_retention = 7 * 24 * 3600;
int	  outbox_attempts_retention = 24 * 3600;
int	  outbox_max_backlog_size = -1;
int	  outbox_log_attempts = OUTBOX_LOG_ATTEMPTS_ALL;
int	  outbox_log_answer_size = 1024;
char *outbox_ssl_ca_file = NULL;
char *outbox_ssl_cert_file = NULL;
char *outbox_ssl_key_file = NULL;
int	  outbox_ssl_min_protocol_version = OUTBOX_TLS_1_2;
char *outbox_proxy = NULL;
char *outbox_wait_for_standbys = NULL;
char *outbox_secret_key_file = NULL;
char *outbox_secrets_directory = NULL;
int	  outbox_aws_role = OUTBOX_AWS_ROLE_NONE;
char *outbox_sinks = NULL;

int
outbox_open_files(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) != 0)
		return INT_MAX;
	return (int) Min(files.rlim_cur, (rlim_t) INT_MAX);
}
