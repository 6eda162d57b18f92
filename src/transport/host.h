#ifndef OUTBOX_HOST_H
#define OUTBOX_HOST_H

#include <stdbool.h>

#define OUTBOX_HOST_SIZE 256 /* of the longest name, with its end */

/* True if a name may be looked up (RFC 1123, with "_" and bytes outside ASCII). */
extern bool outbox_host_is_name(const char *name);

/*
 * Checks a host: a name, or an address in any spelling that the resolver accepts
 * (0x7f.1, 017700000001, [::ffff:7f00:1] …).  Returns the problem, and a hint; NULL:
 * none, and 'bare' (of OUTBOX_HOST_SIZE bytes) has the host without brackets and
 * without a dot at its end.
 */
extern const char *outbox_host_check(const char *host, char *bare, const char **hint);

/*
 * Checks a host, and whether requests may go to its address, 'plain' ones to other than
 * https.  Returns the problem, and a hint; NULL: none.
 */
extern const char *outbox_host_judge(const char *host, const char *plain,
									 const char **hint);

/* Judges each host of "scheme://host:port,host:port/path". */
extern const char *outbox_host_check_url(const char *url, const char **hint);

#endif /* OUTBOX_HOST_H */
