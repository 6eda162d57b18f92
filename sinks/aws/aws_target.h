/*
 * aws_target.h
 *	  Finds in an ARN where events go, as a pure function.
 */
#ifndef OUTBOX_AWS_TARGET_H
#define OUTBOX_AWS_TARGET_H

#include <stdbool.h>
#include <stddef.h>

typedef enum AwsService
{
	AWS_SQS,
	AWS_SNS,
	AWS_EVENTS,
	AWS_KINESIS
} AwsService;

/* Facts that do not depend on the resource. */
typedef struct AwsServiceFacts
{
	const char *label;		   /* for reasons */
	const char *name;		   /* in the ARN, the host and the signature */
	const char *content_type;  /* of a request */
	const char *action;		   /* X-Amz-Target (NULL: it is in the body) */
	int			batch_max;	   /* entries of a request */
	size_t		entry_bytes;   /* that an entry may have, as the service counts */
	size_t		request_bytes; /* that all entries of a request may have */
} AwsServiceFacts;

typedef struct AwsTarget
{
	AwsService			   service;
	const AwsServiceFacts *facts;
	bool				   fifo;
	bool				   encrypted;
	char				   arn[400];
	char				   region[40];
	char				   url[300];	   /* requests go to, with a slash at its end */
	char				   queue_url[400]; /* of SQS */
} AwsTarget;

/*
 * 'endpoint_url' replaces the service's own URL.  NULL: it does not.  Returns the
 * problem, static text.  NULL: none.
 */
extern const char *aws_target_parse(const char *arn, const char *endpoint_url,
									AwsTarget *target);

#endif /* OUTBOX_AWS_TARGET_H */
