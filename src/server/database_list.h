/*
 * database_list.h
 *	  What the launcher knows of the server's databases.
 */
#ifndef OUTBOX_DATABASE_LIST_H
#define OUTBOX_DATABASE_LIST_H

#include "server/shmem.h"

typedef struct OutboxKnownDatabase
{
	Oid		 dboid; /* hash key */
	NameData name;
	bool	 servable; /* can be connected to, and is no template */
	bool	 without;  /* a worker saw that it has no extension */
	uint32	 seen_in;  /* the number of the scan */
} OutboxKnownDatabase;

/*
 * Reads pg_database if there is reason to, and claims slots.  Returns when it
 * wants to be called again.
 */
extern TimestampTz outbox_databases_update(void);

/*
 * Claims a slot for each database that may have the extension.  True: there
 * was one that had none.
 */
extern bool outbox_databases_claim(void);

/* NULL: not in what was read last. */
extern OutboxKnownDatabase *outbox_database_known(Oid dboid);

/*
 * For a slot whose database is not known: is it because that is gone, and not
 * because it is newer than what was read last?
 */
extern bool outbox_database_gone(int slot);

#endif /* OUTBOX_DATABASE_LIST_H */
