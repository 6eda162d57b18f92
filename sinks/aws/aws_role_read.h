/*
 * aws_role_read.h
 *	  Reads the answers of services that give out keys, as pure functions.
 */
#ifndef OUTBOX_AWS_ROLE_READ_H
#define OUTBOX_AWS_ROLE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/json_read.h"

#define AWS_ROLE_TEXT 8192 /* bytes of a text of it, with the zero behind */

typedef struct AwsRoleAnswer
{
	char	  access_key_id[AWS_ROLE_TEXT];
	char	  secret_access_key[AWS_ROLE_TEXT];
	char	  session_token[AWS_ROLE_TEXT];
	long long expires; /* unix time, s */
	char	  code[64];
} AwsRoleAnswer;

/*
 * Reads keys as the metadata services have them (JSON), or as STS has them (XML).
 * Returns the problem, as a static text.  NULL: none.
 */
extern const char *aws_role_read_json(const char *data, size_t len, AwsRoleAnswer *a);
extern const char *aws_role_read_xml(const char *data, size_t len, AwsRoleAnswer *a);

/* Unix time of a text like 2026-11-23T16:00:00Z, in s.  -1: it is another text. */
extern long long aws_role_time(const char *text);

/* True if it is not empty, not longer, and of printable ASCII without spaces. */
extern bool aws_role_is_word(const char *data, size_t len, size_t longest);

/* True if a metadata service may be there: at AWS's addresses for it, and on this machine. */
extern bool aws_role_may_connect(const struct sockaddr *address);

#endif /* OUTBOX_AWS_ROLE_READ_H */
