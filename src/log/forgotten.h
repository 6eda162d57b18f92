#ifndef OUTBOX_FORGOTTEN_H
#define OUTBOX_FORGOTTEN_H

#include "base/outbox.h"

/* A call of outbox.forget() whose work is not complete. */
typedef struct OutboxForget
{
	int64			   id;
	char			  *tenant;
	char			  *key;			 /* NULL: events of any key, and of none */
	char			  *snapshot;	 /* as pg_snapshot prints it */
	int64			   upto;		 /* no event that it concerns has a higher number */
	struct OutboxTick *requested_at; /* it concerns events that this tick sees */

	const struct OutboxForget *next; /* a later one of the same tenant and key */
} OutboxForget;

/*
 * Reads the list from outbox.forgotten, in the present transaction.  Returns false if
 * the table is locked by another session.
 */
extern bool outbox_forgotten_read(void);

/* The list, as last read, and the number of its elements. */
extern const OutboxForget *outbox_forgotten_list(int *n);

/*
 * The first of the list that names this tenant and key, and NULL if none does.  'key'
 * NULL: that names the whole tenant.
 */
extern const OutboxForget *outbox_forgotten_of(const char *tenant, const char *key);

/*
 * True if one of the list concerns an event of this tenant and key that was emitted by
 * 'xid'.  The key, which may be stored elsewhere, is read only where it counts.  In SQL
 * outbox.forgets() says the same.
 */
extern bool outbox_forgotten_covers(const text *tenant, Datum key, bool no_key,
									uint64 xid);

#endif /* OUTBOX_FORGOTTEN_H */
