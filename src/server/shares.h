/*
 * shares.h
 *	  Which worker serves which share: the shares of a database, and how a share
 *	  passes from one worker to another.
 *
 * Share 0 is the work of the database that belongs to no endpoint.  Each other share is
 * the endpoints whose ids have the same remainder.  db->wanted says which worker should
 * have a share, and db->owner which worker has it.  Only the owner does the work of a
 * share.  Only a worker itself makes itself the owner, and only the owner gives a share
 * up:
 *
 *   take		The share has no owner, and is wanted here. From now on its
 *			endpoints are read from the tables.
 *   leave	It is wanted elsewhere. Nothing more is sent. Requests in
 *			flight end or are taken back, everything is settled, and the
 *			endpoints are forgotten. Then the share has no owner.
 *   exit		A process that ends gives up all its shares.
 *
 * So a share never has two owners.  A worker that hangs keeps its shares until its
 * process has ended.
 */
#ifndef OUTBOX_SHARES_H
#define OUTBOX_SHARES_H

#include "server/shmem.h"

#define OUTBOX_SHARE_DATABASE 0

/* The share of an endpoint. */
extern int outbox_share_of(int32 endpoint_id);

/* ------------------------------------------- to be called with the exclusive lock */

/* Makes a worker retire: it ends when other workers have taken its shares. */
extern void outbox_shares_retire(OutboxDatabase *db, int worker);

/* Called when the process of this worker ends. */
extern void outbox_shares_exit(OutboxDatabase *db, int worker);

/* ------------------------------------------------- to be called in the worker */

/* From now on this process takes shares. */
extern void outbox_shares_join(void);

/* The changes that outbox_shares_update() found and made. */
typedef struct OutboxSharesChange
{
	bool taken;	  /* shares were taken: their endpoints must be loaded */
	bool leaving; /* shares are being left: their endpoints must end */
	bool retired; /* this worker has no share any more, and must end */
} OutboxSharesChange;

/*
 * The first is cheap, and returns false if nothing has changed since the second was
 * called.  The second takes the shares that are free and wanted here, and begins to leave
 * the shares that are wanted elsewhere.
 */
extern bool				  outbox_shares_changed(void);
extern OutboxSharesChange outbox_shares_update(void);

/* True if this process serves it.  False for a share that it is leaving. */
extern bool outbox_share_served(int share);
extern bool outbox_serves_database(void);
extern bool outbox_serves_endpoint(int32 endpoint_id);

/* The shares that this process serves, as an int4[].  'with_leaving': and is leaving. */
extern Datum outbox_shares_array(bool with_leaving);

/* The share of an endpoint in SQL. */
#define OUTBOX_SHARE_OF_ENDPOINT "(1 + (endpoint_id % 255))"

/* True if a share is being left and is not yet given up. */
extern bool outbox_shares_leaving(void);

/*
 * Gives up the shares that are being left, except where 'in_use' says that endpoints are
 * still in memory.
 */
extern void outbox_shares_give_back(const bool *in_use);

/*
 * Stores how many endpoints each share has.  Called only by the worker that serves the
 * share of the database.
 */
extern void outbox_shares_weigh(const uint16 *weight);

#endif /* OUTBOX_SHARES_H */
