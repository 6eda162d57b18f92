/*
 * aws_signer.c
 *	  Owns the functions that this sink has for other sinks.
 */
#include "postgres.h"

#include "aws_signer.h"

#include "aws_role.h"

static char *
msk_token(const AwsKeys *keys, const char *region)
{
	if (keys == NULL)
		keys = aws_role_keys();
	return keys ? aws_sign_msk(keys, region, time(NULL)) : NULL;
}

static bool
gives_away(const char *words, const AwsKeys *keys, const char *token)
{
	return (token && aws_gives_away(words, token)) ||
		(keys && keys->session_token && aws_gives_away(words, keys->session_token)) ||
		(keys == NULL && aws_role_is_given_away(words));
}

const AwsSigner aws_signer = {
	.role_join = aws_role_join,
	.role_leave = aws_role_leave,
	.role_version = aws_role_version,
	.role_reason = aws_role_reason,
	.role_refused = aws_role_refused,
	.msk_token = msk_token,
	.gives_away = gives_away,
};
