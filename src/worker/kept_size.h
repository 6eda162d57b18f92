/*
 * kept_size.h
 *	  How many bytes are kept for a tenant whose endpoints do not read.
 */
#ifndef OUTBOX_KEPT_SIZE_H
#define OUTBOX_KEPT_SIZE_H

#include "endpoint/endpoint.h"

/* In SQL, the bytes of an event and its row p of outbox.parked; about, without indexes. */
#define OUTBOX_KEPT_SIZE \
	"(SELECT 256 + COALESCE(pg_catalog.pg_column_size(a.payload), 0)" \
	" + COALESCE(pg_catalog.pg_column_size(a.body), 0)" \
	" + COALESCE(pg_catalog.pg_column_size(a.headers), 0)" \
	" + 2 * COALESCE(pg_catalog.pg_column_size(a.key), 0)" \
	" FROM outbox.all_events a WHERE a.seq = p.seq AND a.id = p.event_id LIMIT 1)"

/* Returns how many bytes are kept.  Rows whose size was not read count as the others. */
extern int64 outbox_kept_size(const OutboxTenant *t);

/* True if there are rows whose sizes have to be read. */
extern bool outbox_kept_size_is_due(const OutboxTenant *t);

/*
 * Reads the sizes of some rows of these endpoints, which are all that have rows, in the
 * present transaction.
 */
extern void outbox_kept_size_read(OutboxTenant *t, OutboxEndpoint **endpoints, int n);

/* Reports that rows of so many bytes were given up. */
extern void outbox_kept_size_left(OutboxTenant *t, int64 rows, int64 bytes);

#endif /* OUTBOX_KEPT_SIZE_H */
