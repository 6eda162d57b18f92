/*
 * memory.c
 *	  Owns the count of the memory that a worker's events, bodies and answers take.  It
 *	  also sets how memory is taken from the system and returned.
 */
#include "base/outbox.h"

#include <malloc.h>
#include <unistd.h>

#include "storage/fd.h"

#include "base/memory.h"

/*
 * Pieces of memory of at least this many bytes are mappings of their own, which return
 * to the system as soon as they are freed.  Smaller ones come from the heap.
 */
#define MAP_FROM (256 * 1024)

/*
 * The end of the heap is returned to the system only when at least this many bytes are
 * free there.  Pages of events are allocated and freed all the time.
 */
#define KEEP_FREE (16 * 1024 * 1024)

size_t outbox_memory_used;
size_t outbox_memory_peak;
size_t outbox_memory_connections;

void
outbox_memory_init(void)
{
	mallopt(M_TRIM_THRESHOLD, KEEP_FREE);
	mallopt(M_MMAP_THRESHOLD, MAP_FROM);
}

#define BASE ((size_t) 48 * 1024 * 1024)
#define OF_ENDPOINT ((size_t) 24 * 1024)

size_t
outbox_memory_bound(int64 endpoints, size_t settings)
{
	return outbox_memory_limit() + BASE + OF_ENDPOINT * endpoints + settings +
		outbox_memory_connections;
}

size_t
outbox_memory_resident(size_t *data)
{
	FILE		 *file = AllocateFile("/proc/self/statm", "r");
	unsigned long resident = 0;
	unsigned long shared = 0;
	unsigned long all = 0;

	if (file == NULL)
		return 0;
	if (fscanf(file, "%*u %lu %lu %*u %*u %lu", &resident, &shared, &all) != 3)
		resident = shared;
	FreeFile(file);
	if (data)
		*data = all * (size_t) sysconf(_SC_PAGESIZE);
	return (resident - shared) * (size_t) sysconf(_SC_PAGESIZE);
}

/*
 * The server's table of locks has room for all sessions together, and any role can fill it.
 * A lock that found no room there is a failure as any other, though its SQLSTATE is the same.
 */
bool
outbox_memory_was_lacking(MemoryContext cxt)
{
	ErrorData *error;
	bool	   lacks;

	if (geterrcode() != ERRCODE_OUT_OF_MEMORY)
		return false;
	MemoryContextSwitchTo(cxt);
	error = CopyErrorData();
	lacks = error->message_id == NULL ||
		strcmp(error->message_id, "out of shared memory") != 0;
	FreeErrorData(error);
	return lacks;
}

static size_t freed; /* and not taken again, since memory was last returned */

void
outbox_memory_freed(size_t bytes)
{
	freed += bytes;
}

void
outbox_memory_taken(size_t bytes)
{
	freed -= Min(freed, bytes);
}

/*
 * A single small piece in use keeps free() from returning all of the heap before it, and
 * each thread of a library has a heap of its own.  malloc_trim() returns every free page,
 * wherever it lies.  It walks all heaps, so it is called at most once a second, and only
 * when most of a larger peak is free again, or the process has grown since.
 */
void
outbox_memory_give_back(TimestampTz now)
{
	static TimestampTz looked_at;
	static size_t	   resident = BASE; /* after the last call */

	if (now - looked_at < USECS_PER_SEC && now >= looked_at)
		return;
	looked_at = now;
	if (outbox_memory_peak < 2 * outbox_memory_used + KEEP_FREE && freed < KEEP_FREE &&
		outbox_memory_resident(NULL) < resident + resident / 8 + KEEP_FREE)
		return;
	freed = 0;
	outbox_memory_peak = outbox_memory_used;
	malloc_trim(0);
	resident = outbox_memory_resident(NULL);
}
