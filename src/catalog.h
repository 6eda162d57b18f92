/*
 * catalog.h
 *	  Reads what the tables say about endpoints: settings, positions, parked
 *	  deliveries.
 */
#ifndef OUTBOX_CATALOG_H
#define OUTBOX_CATALOG_H

#include "endpoint.h"

/* All of these run inside a transaction of session.h. */

/* Calls 'apply' for each endpoint there is, with its settings as a row. */
typedef struct OutboxSettings
{
	int32		id;
	const char *name;
	const char *url;
	int			npatterns;
	char	  **patterns;
	JsonPath   *filter;
	OutboxFormat format;
	int			nheaders;
	char	  **header_names;
	char	  **header_values;
	OutboxOrdering ordering;
	bool		block_on_dead;
	int			max_in_flight;
	double		rate_limit;
	int64		timeout;		/* µs, as all intervals here */
	int64		connect_timeout;
	int			max_attempts;
	int64		max_age;
	int64		backoff_base;
	int64		backoff_max;
	int			batch_size;
	int64		batch_wait;
	bool		paused;
	bool		disabled;
	TimestampTz state_since;
	const char *reason;
	int64		version;
	int64		generation;
	OutboxTick *start;
	const char *secret;			/* NULL: missing */
	uint64		row_version;	/* of the rows: same number, same settings */
	const char *previous;		/* NULL: none, or its time is over */
	TimestampTz previous_until; /* DT_NOEND: no previous one */
} OutboxSettings;

typedef void (*OutboxApplySettings) (void *arg, const OutboxSettings *s);
extern void outbox_catalog_settings(OutboxApplySettings apply, void *arg);

/* Copies settings into the endpoint (creating its contexts anew). */
extern void outbox_catalog_assign(OutboxEndpoint *ep, const OutboxSettings *s);

/* A stored position. */
typedef struct OutboxPosition
{
	int64		generation;
	OutboxCursor cursor;
	int			npending;
	int64	   *pending;
	int64		delivered;
	int64		failed_attempts;
} OutboxPosition;

/*
 * The newest position of one endpoint, its own or the one that it shares.
 * False: none is stored.  The caller clears the cursor.
 */
extern bool outbox_catalog_position(int32 endpoint_id, OutboxPosition *position);

/* The shared position that was written last.  False: there is none. */
extern bool outbox_catalog_newest_shared(OutboxCursor *cursor);

/* Numbers that are given out go on from those that are in use. */
extern void outbox_catalog_raise_numbers(OutboxDatabase *db);

/* Which of the two tables of positions is in use, and how full it is. */
extern void outbox_catalog_positions_in_use(OutboxDatabase *db);

/* The newest version of the subscription that has a place in the log. */
extern int64 outbox_catalog_subscription(int32 endpoint_id);

/* What waits in outbox.parked for this endpoint. */
extern void outbox_catalog_load_parked(OutboxEndpoint *ep);

/* Brings deliveries back: due retries; the next followers of waiting lanes. */
extern void outbox_catalog_load_retries(OutboxEndpoint *ep, const int64 *seqs, int n);
extern void outbox_catalog_load_followers(OutboxEndpoint *ep);

/* In a settle: rows whose event turned out to be gone. */
extern void outbox_catalog_write_gone(void);
extern void outbox_catalog_forget_parked(int32 endpoint_id, const OutboxTick *start);

/* Events that were on their way when the position was written. */
extern void outbox_catalog_load_pending(OutboxEndpoint *ep, const int64 *seqs, int n);

#endif							/* OUTBOX_CATALOG_H */
