/*
 * blind.c
 *	  A server that is blind to what its peers do.  Preloaded, it takes out the bounds on a peer
 *	  of http_peer.c and http_head.c, so that only the watchdog and the account of CPU are left:
 *
 *	  - a line Transfer-Encoding is not shown to the worker, so no coding is refused, and
 *		libcurl decodes,
 *	  - OpenSSL reports no message and no record, so neither is counted,
 *	  - the kernel does not count the bytes of a connection,
 *	  - OpenSSL asks for no group and no curve, so costly ones are offered and accepted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>

typedef size_t (*TakeLine)(char *line, size_t size, size_t n, void *arg);

#define HEADERFUNCTION 20079
#define CONTENT_DECODING 158 /* without which libcurl decodes no transfer coding either */

static const char hidden[] = "Transfer-Encoding:";
static TakeLine	  take_line;

static size_t
hide_line(char *line, size_t size, size_t n, void *arg)
{
	size_t len = size * n;

	if (len >= sizeof(hidden) - 1 && strncasecmp(line, hidden, sizeof(hidden) - 1) == 0)
		return len;
	return take_line(line, size, n, arg);
}

int
curl_easy_setopt(void *easy, int option, ...)
{
	static int (*real)(void *, int, ...);
	va_list args;
	void   *value;

	va_start(args, option);
	value = va_arg(args, void *); /* a number is passed in the same way */
	va_end(args);
	if (option == CONTENT_DECODING)
		return 0;
	if (option == HEADERFUNCTION && value)
	{
		take_line = (TakeLine) value;
		value = (void *) hide_line;
	}
	if (real == NULL)
		real = (int (*)(void *, int, ...)) dlsym(RTLD_NEXT, "curl_easy_setopt");
	return real(easy, option, value);
}

void
SSL_CTX_set_msg_callback(void *ctx, void *callback)
{
	(void) ctx, (void) callback;
}

void
SSL_CTX_set_security_callback(void *ctx, void *callback)
{
	(void) ctx, (void) callback;
}

int
getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	static int (*real)(int, int, int, void *, socklen_t *);

	if (level == IPPROTO_TCP && name == TCP_INFO)
	{
		errno = ENOPROTOOPT;
		return -1;
	}
	if (real == NULL)
		real = (int (*)(int, int, int, void *, socklen_t *)) dlsym(RTLD_NEXT,
																   "getsockopt");
	return real(fd, level, name, value, len);
}
