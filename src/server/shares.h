/*
 * shares.h
 *	  Who serves what: the shares of a database, and how they change hands.
 *
 * Share 0 is the work that belongs to the database and to no endpoint; each of
 * the others is the endpoints whose ids have the same remainder.  db->wanted
 * says who is to have a share, db->owner who has it.  Only who has it touches
 * what belongs to it, and the owner alone makes itself the owner and ends being
 * it:
 *
 *	  take		nobody has it, and it is wanted here: from now on its endpoints
 *				are read from the tables
 *	  leave		it is wanted elsewhere: nothing more is sent, what is in flight
 *				ends or is taken back, everything is settled, and the endpoints
 *				are forgotten; then it is nobody's
 *	  exit		a process that ends has nothing any more
 *
 * So there is never more than one owner, and one that hangs keeps what it has
 * until its process is gone.
 */
#ifndef OUTBOX_SHARES_H
#define OUTBOX_SHARES_H

#include "server/shmem.h"

#define OUTBOX_SHARE_DATABASE 0

extern int outbox_share_of(int32 endpoint_id);

/* ------------------------------------------------- with the exclusive lock */

/*
 * Says anew who is to have what: as even as the numbers of endpoints allow, and
 * with as little moving as that takes.  To be called when a worker comes, is to
 * go, or is gone.
 */
extern void outbox_shares_distribute(OutboxDatabase *db);

/* This worker is to go, when others have what it has. */
extern void outbox_shares_retire(OutboxDatabase *db, int worker);

/* The process of this worker ends. */
extern void outbox_shares_exit(OutboxDatabase *db, int worker);

/* ----------------------------------------------------------- in the worker */

/* From now on this process takes shares. */
extern void outbox_shares_join(OutboxDatabase *db, int worker);

/* What outbox_shares_look() found. */
typedef struct OutboxSharesNews
{
	bool taken;	   /* there are endpoints to be met */
	bool leaving;  /* there are endpoints to be left */
	bool database; /* the database's own work is ours now */
	bool retired;  /* nothing is ours any more, and the process is
								 * to end */
} OutboxSharesNews;

/* False: nothing has changed since the last look.  Cheap. */
extern bool				outbox_shares_changed(void);
extern OutboxSharesNews outbox_shares_look(void);

/* Does this process serve it?  False for what it is about to leave. */
extern bool outbox_share_served(int share);
extern bool outbox_serves_database(void);
extern bool outbox_serves_endpoint(int32 endpoint_id);

/* Those that are served, as an int4[], and the share of an endpoint in SQL. */
extern Datum outbox_shares_array(void);
#define OUTBOX_SHARE_OF_ENDPOINT \
	"(1 OPERATOR(pg_catalog.+) (endpoint_id OPERATOR(pg_catalog.%) 255))"

/* Is it about to be left, and not yet given back? */
extern bool outbox_shares_leaving(void);

/* 'in_use' says where endpoints are still in memory: the others are given back. */
extern void outbox_shares_give_back(const bool *in_use);

/* How many endpoints each share has; only who serves the database tells. */
extern void outbox_shares_weigh(const uint16 *weight);

#endif /* OUTBOX_SHARES_H */
