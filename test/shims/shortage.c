/*
 * shortage.c
 *	  A machine that runs out of disk space or memory when a test wants it.
 *	  Preloaded into a server, it obeys the file $OUTBOX_SHORTAGE, which has five
 *	  numbers.
 *
 *	  0: not 0: files of tables cannot grow (the WAL is on another disk)
 *	  1: id of the process whose memory is short, 0: none
 *	  2: of this many allocations of that process, one fails
 *	  3: number of allocations that have failed, counted here
 *	  4: as many calls of curl_multi_socket_action() of that process fail for want of memory;
 *	     below 0: as many do nothing, and do not say so
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);

static volatile long long  none[5];
static volatile long long *orders = none;

__attribute__((constructor)) static void
read_orders(void)
{
	const char *path = getenv("OUTBOX_SHORTAGE");
	int			fd = path ? open(path, O_RDWR) : -1;
	void	   *map = fd >= 0 ?
			  mmap(NULL, sizeof(none), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) :
			  MAP_FAILED;

	if (fd >= 0)
		close(fd);
	if (map != MAP_FAILED)
		orders = map;
}

/* ---------------------------------------------------------------- the disk */

static int
is_full(int fd, off_t end)
{
	char		link[64];
	char		path[PATH_MAX];
	ssize_t		len;
	struct stat st;

	if (orders[0] == 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len <= 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || end <= st.st_size)
		return 0;
	path[len] = '\0';
	if (strstr(path, "/base/") == NULL)
		return 0;
	errno = ENOSPC;
	return 1;
}

ssize_t
pwrite(int fd, const void *buf, size_t n, off_t offset)
{
	static ssize_t (*real)(int, const void *, size_t, off_t);

	if (is_full(fd, offset + (off_t) n))
		return -1;
	if (real == NULL)
		real = (ssize_t(*)(int, const void *, size_t, off_t)) dlsym(RTLD_NEXT, "pwrite");
	return real(fd, buf, n, offset);
}

ssize_t
pwrite64(int fd, const void *buf, size_t n, off_t offset)
{
	return pwrite(fd, buf, n, offset);
}

ssize_t
pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	static ssize_t (*real)(int, const struct iovec *, int, off_t);
	off_t end = offset;

	for (int i = 0; i < n; i++)
		end += (off_t) iov[i].iov_len;
	if (is_full(fd, end))
		return -1;
	if (real == NULL)
		real = (ssize_t(*)(int, const struct iovec *, int, off_t)) dlsym(RTLD_NEXT,
																		 "pwritev");
	return real(fd, iov, n, offset);
}

ssize_t
pwritev64(int fd, const struct iovec *iov, int n, off_t offset)
{
	return pwritev(fd, iov, n, offset);
}

int
posix_fallocate(int fd, off_t offset, off_t len)
{
	static int (*real)(int, off_t, off_t);

	if (is_full(fd, offset + len))
		return ENOSPC;
	if (real == NULL)
		real = (int (*)(int, off_t, off_t)) dlsym(RTLD_NEXT, "posix_fallocate");
	return real(fd, offset, len);
}

int
posix_fallocate64(int fd, off_t offset, off_t len)
{
	return posix_fallocate(fd, offset, len);
}

/* --------------------------------------------------------------- the memory */

/* Where the dynamic linker is. */
static const char *linker_begin;
static const char *linker_end;

extern void *__tls_get_addr(void *);

static int
find_linker(struct dl_phdr_info *object, size_t size, void *arg)
{
	const char *inside = (const char *) __tls_get_addr;

	(void) size;
	(void) arg;
	for (int i = 0; i < object->dlpi_phnum; i++)
	{
		const char *begin = (const char *) object->dlpi_addr +
			object->dlpi_phdr[i].p_vaddr;

		if (object->dlpi_phdr[i].p_type != PT_LOAD || inside < begin ||
			inside >= begin + object->dlpi_phdr[i].p_memsz)
			continue;
		linker_begin = begin;
		linker_end = begin + object->dlpi_phdr[i].p_memsz;
		return 1;
	}
	return 0;
}

__attribute__((constructor)) static void
look_for_linker(void)
{
	dl_iterate_phdr(find_linker, NULL);
}

/*
 * The linker allocates the variables of a thread when they are first used, and ends the
 * process when it cannot (glibc 2.41).  No program can do anything about that.
 */
static int
is_out_of_memory(const char *caller)
{
	static long long count;

	if (caller >= linker_begin && caller < linker_end)
		return 0;
	if (orders[1] == 0 || getpid() != (pid_t) orders[1] || ++count % orders[2] != 0)
		return 0;
	__atomic_fetch_add(&orders[3], 1, __ATOMIC_RELAXED);
	errno = ENOMEM;
	return 1;
}

void *
malloc(size_t size)
{
	return is_out_of_memory(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *
calloc(size_t n, size_t size)
{
	return is_out_of_memory(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *
realloc(void *old, size_t size)
{
	return is_out_of_memory(__builtin_return_address(0)) ? NULL :
														   __libc_realloc(old, size);
}

/* It has begun nothing then, and never calls back. */
int
curl_multi_socket_action(void *multi, int fd, int mask, int *running)
{
	static int (*real)(void *, int, int, int *);

	if (orders[1] == (long long) getpid() && orders[4] != 0)
	{
		int code = orders[4] > 0 ? 3 : 0; /* CURLM_OUT_OF_MEMORY, CURLM_OK */

		orders[4] += code ? -1 : 1;
		return code;
	}
	if (real == NULL)
		real = (int (*)(void *, int, int, int *)) dlsym(RTLD_NEXT,
														"curl_multi_socket_action");
	return real(multi, fd, mask, running);
}
