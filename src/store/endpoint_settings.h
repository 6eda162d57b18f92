#ifndef OUTBOX_ENDPOINT_SETTINGS_H
#define OUTBOX_ENDPOINT_SETTINGS_H

#include "utils/jsonb.h"

#include "base/table_rows.h"
#include "endpoint/endpoint.h"

/* All functions here run inside a transaction of transaction.h. */

/*
 * The settings of an endpoint and its place in the log, as the tables have them.  Only
 * 'id' is set for an endpoint that is on hold.
 */
typedef struct OutboxEndpointRow
{
	int32			 id;
	const char		*name;
	const char		*tenant;		   /* NULL: none */
	int				 tenant_in_flight; /* of all its endpoints (0: no limit) */
	double			 tenant_rate;	   /* the same, per second */
	OutboxKeptMost	 tenant_kept;	   /* the same, in outbox.parked */
	const char		*url;
	int				 npatterns;
	char		   **patterns;
	JsonPath		*filter;
	OutboxFormat	 format;
	int				 nheaders;
	char		   **header_names;
	char		   **header_values;
	Jsonb			*config; /* NULL: none */
	bool			 has_credentials;
	Jsonb			*credentials; /* as stored (NULL: none, or missing) */
	OutboxOrdering	 ordering;
	bool			 block_on_dead;
	OutboxPaceLimits pace;
	int64			 timeout; /* µs, like all intervals here */
	int64			 connect_timeout;
	int				 max_attempts;
	int64			 max_age;
	int				 batch_size;
	int64			 batch_wait;
	int64			 disable_after; /* 0: never */
	int				 log_attempts;	/* -1: as the setting says */
	bool			 paused;
	bool			 disabled;
	TimestampTz		 state_since;
	const char		*reason;
	OutboxChallenge	 challenge; /* that is to be answered (NONE: it was) */
	int				 challenges;
	int64			 version;
	int64			 generation;
	OutboxTick		*start;
	const char		*secret;		 /* as stored (NULL: missing) */
	uint64			 row_version;	 /* changes when one of the rows changes */
	uint64			 keys_version;	 /* changes when the key file changes */
	const char		*previous;		 /* NULL: none, or its time is over */
	TimestampTz		 previous_until; /* DT_NOEND: no previous one */
	int64			 subscription;	 /* the newest version that is stored with its place
									  * in the log (0: none) */
	OutboxColumns	 position;		 /* for outbox_position_read() */
} OutboxEndpointRow;

/* The format of that name, which is one of them. */
extern OutboxFormat outbox_endpoint_format(const char *name);

/*
 * Reads the headers of an endpoint, and returns their number.  'hidden' stands in place of
 * each value, unless it is NULL.
 */
extern int outbox_endpoint_headers(Jsonb *headers, char *hidden, char ***names,
								   char ***values);

/*
 * If reading the endpoint's settings is on hold, the row has only its id and its
 * 'row_version'.
 */
typedef void (*OutboxApplyEndpointRow)(void *arg, const OutboxEndpointRow *s);

/* The 'row_version' of these two rows, by their xmin (0: there is none). */
extern uint64 outbox_endpoint_row_version(TransactionId settings, TransactionId secrets);

/*
 * Reads the settings of these endpoints, an int4[], or of all (NULL).  Returns true if the
 * time of a previous secret is over: it is to be deleted.
 */
extern bool outbox_endpoint_settings_read(ArrayType *ids, OutboxApplyEndpointRow apply,
										  void *arg);

/*
 * Copies settings into the endpoint, in a new memory context.  After an error the
 * endpoint has its former settings.
 */
extern void outbox_endpoint_settings_assign(OutboxEndpoint			*ep,
											const OutboxEndpointRow *s);

#endif /* OUTBOX_ENDPOINT_SETTINGS_H */
