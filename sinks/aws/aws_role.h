#ifndef OUTBOX_AWS_ROLE_H
#define OUTBOX_AWS_ROLE_H

#include "postgres.h"

#include "aws_http.h"

/* True if the setting names a role.  Any process may ask. */
extern bool aws_role_is_set(void);

/* The settings were read.  Keys are fetched anew. */
extern void aws_role_reload(void);

/* The number of endpoints that use it.  Without any, there are no keys. */
extern void aws_role_join(void);
extern void aws_role_leave(void);

/* One of them, for 'serves': its requests are for all. */
extern int32_t aws_role_user;

/* NULL: there are none that are valid, and the reason says why. */
extern const AwsKeys *aws_role_keys(void);
extern const char	 *aws_role_reason(void);

/* Raised with each other keys.  0: there are none that are valid. */
extern unsigned aws_role_version(void);

/* A service has refused them. */
extern void aws_role_refused(void);

/* True if the words have a session token of it in them. */
extern bool aws_role_is_given_away(const char *words);

/* Begins to fetch keys when it is time. */
extern void aws_role_step(void);
extern long aws_role_timeout(void);

/*
 * A request that is not signed has ended.  Returns true if there are other keys now.  It
 * releases the request.
 */
extern bool aws_role_ended(AwsRequest *r, const AwsEnd *end);

#endif /* OUTBOX_AWS_ROLE_H */
