/*
 * memory.h
 *	  The memory that a worker's events, bodies and answers take, and
 *	  outbox.worker_memory.
 *
 * Each owner of such memory has an account: the number of bytes that it takes now.
 * The owner reports each change with outbox_memory_account(), and the end with 0
 * bytes.
 */
#ifndef OUTBOX_MEMORY_H
#define OUTBOX_MEMORY_H

#include "base/outbox.h"

#include "base/settings.h"

/*
 * The sum of all accounts, and its highest value since memory was last returned to the
 * system.  In bytes.
 */
extern size_t outbox_memory_used;
extern size_t outbox_memory_peak;

/* Sets an account to 'bytes'. */
static inline void
outbox_memory_account(size_t *account, size_t bytes)
{
	outbox_memory_used += bytes - *account;
	*account = bytes;
	if (outbox_memory_used > outbox_memory_peak)
		outbox_memory_peak = outbox_memory_used;
}

/* outbox.worker_memory in bytes. */
static inline size_t
outbox_memory_limit(void)
{
	return (size_t) outbox_worker_memory * 1024 * 1024;
}

/* True if 'bytes' more stay within the limit. */
static inline bool
outbox_memory_fits(size_t bytes)
{
	return outbox_memory_used + bytes <= outbox_memory_limit();
}

/*
 * The same for events that are read before they are needed.  They may take half of the
 * memory.  The other half stays free for events that are being sent.
 */
static inline bool
outbox_memory_fits_ahead(size_t bytes)
{
	return outbox_memory_used + bytes <= outbox_memory_limit() / 2;
}

/*
 * True if endpoints that may not send give up the events that they hold, because nothing
 * more can be read ahead for the others.
 */
static inline bool
outbox_memory_is_short(void)
{
	return !outbox_memory_fits_ahead(0);
}

/*
 * The most bytes that the open connections take with a request in flight, as doc/settings.md
 * says.  Each transport adds its own, and takes them off when they are closed.  Of a link of
 * a sink the number of connections is not known: it counts as one.
 */
extern size_t outbox_memory_connections;
#define OUTBOX_MEMORY_OF_LINK ((size_t) 244 * 1024)

/*
 * Returns the most that a worker takes of the system's memory, RssAnon, as
 * doc/settings.md says: with so many endpoints, the bytes of their settings, and its
 * connections.
 */
extern size_t outbox_memory_bound(int64 endpoints, size_t settings);

/*
 * Returns the memory that the process has now, in bytes, and sets how much is its own, of
 * which not all is resident.  0: the system does not say.
 */
extern size_t outbox_memory_resident(size_t *data);

/*
 * In PG_CATCH: true if the error is a lack of memory of this process.  Switches to the memory
 * context, in which it looks at the error.
 */
extern bool outbox_memory_was_lacking(MemoryContext cxt);

/* Sets how memory is taken from the system.  Called at the start of a worker. */
extern void outbox_memory_init(void);

/* About so much was freed, or taken again, that outbox_memory_used does not include. */
extern void outbox_memory_freed(size_t bytes);
extern void outbox_memory_taken(size_t bytes);

/* Returns memory to the system after a peak.  Cheap, to be called often. */
extern void outbox_memory_give_back(TimestampTz now);

#endif /* OUTBOX_MEMORY_H */
