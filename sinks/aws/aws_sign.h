#ifndef OUTBOX_AWS_SIGN_H
#define OUTBOX_AWS_SIGN_H

#include <time.h>

#include "aws_text.h"

typedef struct AwsKeys
{
	char *access_key_id;
	char *secret_access_key;
	char *session_token; /* NULL: none */
} AwsKeys;

/* Overwrites and frees the allocated strings. */
extern void aws_keys_wipe(AwsKeys *keys);

#define AWS_MSK_LIFETIME 900 /* s, for which AWS accepts a token */

/*
 * Makes the token that lets a client in to MSK, as text that is to be wiped: the URL of a
 * request to Connect, signed as of 'now', in base64url.  NULL: out of memory.
 */
extern char *aws_sign_msk(const AwsKeys *keys, const char *region, time_t now);

#endif /* OUTBOX_AWS_SIGN_H */
