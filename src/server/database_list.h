#ifndef OUTBOX_DATABASE_LIST_H
#define OUTBOX_DATABASE_LIST_H

#include "server/shmem.h"

typedef struct OutboxKnownDatabase
{
	Oid		 dboid; /* hash key */
	NameData name;
	bool	 servable; /* allows connections, and is no template */
	bool	 without;  /* a worker saw that it has no extension */
	uint32	 seen_in;  /* the number of the last scan that found it */
} OutboxKnownDatabase;

/*
 * Reads pg_database if it may have changed, and claims slots.  Returns when it must be
 * called again.
 */
extern TimestampTz outbox_databases_update(void);

/*
 * Claims a slot for each database that may have the extension.  Returns true if a slot
 * was claimed.
 */
extern bool outbox_databases_claim(void);

/* Returns NULL if the database was not there when pg_database was last read. */
extern OutboxKnownDatabase *outbox_database_known(Oid dboid);

/*
 * For a slot whose database is not in the list: true if the database was dropped,
 * false if it is newer than the list.
 */
extern bool outbox_database_gone(int slot);

#endif /* OUTBOX_DATABASE_LIST_H */
