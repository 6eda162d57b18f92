/*
 * endpoint_settings.h
 *	  Reads what the tables say about endpoints: their settings.
 */
#ifndef OUTBOX_ENDPOINT_SETTINGS_H
#define OUTBOX_ENDPOINT_SETTINGS_H

#include "endpoint/endpoint.h"

/* All of these run inside a transaction of transaction.h. */

/* Calls 'apply' for each endpoint there is, with its settings as a row. */
typedef struct OutboxEndpointRow
{
	int32			 id;
	const char		*name;
	const char		*url;
	int				 npatterns;
	char		   **patterns;
	JsonPath		*filter;
	OutboxFormat	 format;
	int				 nheaders;
	char		   **header_names;
	char		   **header_values;
	OutboxOrdering	 ordering;
	bool			 block_on_dead;
	OutboxPaceLimits pace;
	int64			 timeout; /* µs, as all intervals here */
	int64			 connect_timeout;
	int				 max_attempts;
	int64			 max_age;
	int				 batch_size;
	int64			 batch_wait;
	bool			 paused;
	bool			 disabled;
	TimestampTz		 state_since;
	const char		*reason;
	int64			 version;
	int64			 generation;
	OutboxTick		*start;
	const char		*secret;		 /* as stored; NULL: missing */
	uint64			 row_version;	 /* of the rows: same number, same settings */
	uint64			 keys_version;	 /* of the key file: the same holds for it */
	const char		*previous;		 /* NULL: none, or its time is over */
	TimestampTz		 previous_until; /* DT_NOEND: no previous one */
} OutboxEndpointRow;

typedef void (*OutboxApplyEndpointRow)(void *arg, const OutboxEndpointRow *s);
extern void outbox_endpoint_settings_read(OutboxApplyEndpointRow apply, void *arg);

/* Copies settings into the endpoint (creating its contexts anew). */
extern void outbox_endpoint_settings_assign(OutboxEndpoint			*ep,
											const OutboxEndpointRow *s);

/* The newest version of the subscription that has a place in the log. */
extern int64 outbox_endpoint_settings_subscription(int32 endpoint_id);

#endif /* OUTBOX_ENDPOINT_SETTINGS_H */
