/*
 * memory.h
 *	  What a worker's events, bodies and answers take, and outbox.worker_memory.
 *
 * Whatever holds such memory has an account: the number of bytes that it takes
 * now.  Each change is told with outbox_memory_account(), the end with 0 bytes.
 */
#ifndef OUTBOX_MEMORY_H
#define OUTBOX_MEMORY_H

#include "base/outbox.h"

#include "base/settings.h"

/* The sum of all accounts, and its highest value since memory was given back. */
extern size_t outbox_memory_used;
extern size_t outbox_memory_peak;

static inline void
outbox_memory_account(size_t *account, size_t bytes)
{
	outbox_memory_used += bytes - *account;
	*account = bytes;
	if (outbox_memory_used > outbox_memory_peak)
		outbox_memory_peak = outbox_memory_used;
}

/* The bound, in bytes. */
static inline size_t
outbox_memory_limit(void)
{
	return (size_t) outbox_worker_memory * 1024 * 1024;
}

/* True if so many more bytes are within the bound. */
static inline bool
outbox_memory_fits(size_t bytes)
{
	return outbox_memory_used + bytes <= outbox_memory_limit();
}

/*
 * The same for what is read before it is needed.  It may take half of the memory:
 * the other half is left to what is being sent.
 */
static inline bool
outbox_memory_fits_ahead(size_t bytes)
{
	return outbox_memory_used + bytes <= outbox_memory_limit() / 2;
}

/* At the start of a worker: how its memory is taken from the system. */
extern void outbox_memory_init(void);

/* After a burst: what it took goes back to the system.  To be called often. */
extern void outbox_memory_give_back(TimestampTz now);

#endif /* OUTBOX_MEMORY_H */
