/*
 * allocator.c
 *	  A malloc() that can be left in the middle.  Once 'allocator_hangs' is set, each call of
 *	  it waits for ever, as for a lock that is never given back.  stuck.c sets it.
 */
#include <stddef.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void	 __libc_free(void *);

volatile int allocator_hangs;

static void
wait_for_lock(void)
{
	while (allocator_hangs)
		pause();
}

void *
malloc(size_t size)
{
	wait_for_lock();
	return __libc_malloc(size);
}

void *
calloc(size_t n, size_t size)
{
	wait_for_lock();
	return __libc_calloc(n, size);
}

void *
realloc(void *old, size_t size)
{
	wait_for_lock();
	return __libc_realloc(old, size);
}

void
free(void *old)
{
	if (old == NULL)
		return;
	wait_for_lock();
	__libc_free(old);
}
