/*
 * aws_signer.h
 *	  The functions of outbox_aws for other sinks of its worker: they make tokens for
 *	  Amazon MSK, also with the keys of the role.
 */
#ifndef OUTBOX_AWS_SIGNER_H
#define OUTBOX_AWS_SIGNER_H

#include "aws_sign.h"

/* The rendezvous variable that points to it once the sink is started.  Raised with it. */
#define AWS_SIGNER "outbox_aws_signer_1"

typedef struct AwsSigner
{
	/* Keys of the role are fetched while there is an endpoint with them. */
	void (*role_join)(void);
	void (*role_leave)(void);

	/* Raised with each other keys.  0: there are none, and the reason says why. */
	unsigned (*role_version)(void);
	const char *(*role_reason)(void);

	/* A service has refused them. */
	void (*role_refused)(void);

	/*
	 * Makes a token as aws_sign_msk() does.  Without keys it has the keys of the role,
	 * and ends with them.  NULL: there are no keys, or no memory.
	 */
	char *(*msk_token)(const AwsKeys *keys, const char *region);

	/* True if the words have a part of the token, or of the session token in it. */
	bool (*gives_away)(const char *words, const AwsKeys *keys, const char *token);
} AwsSigner;

extern const AwsSigner aws_signer;

#endif /* OUTBOX_AWS_SIGNER_H */
