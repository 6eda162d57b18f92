/*
 * aws_target.c
 *	  Owns the meaning of an ARN.
 */
#include "aws_target.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "../sink.h"
#include "aws_partition.h"

#define KB ((size_t) 1024)
#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"
#define LETTERS LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

static const AwsServiceFacts services[] = {
	[AWS_SQS] = {"SQS", "sqs", "application/x-amz-json-1.0", "AmazonSQS.SendMessageBatch",
				 10, 1024 * KB, 1024 * KB},
	[AWS_SNS] = {"SNS", "sns", "application/x-www-form-urlencoded", NULL, 10, 256 * KB,
				 256 * KB},
	[AWS_EVENTS] = {"EventBridge", "events", "application/x-amz-json-1.1",
					"AWSEvents.PutEvents", 10, 256 * KB, 256 * KB},
	[AWS_KINESIS] = {"Kinesis", "kinesis", "application/x-amz-json-1.1",
					 "Kinesis_20131202.PutRecords", 500, 1024 * KB, 5 * 1024 * KB},
};

/* Copies the next part of an ARN.  Returns the place behind it.  NULL: it is wrong. */
static const char *
take(const char *p, const char *legal, char *out, size_t size)
{
	size_t len = p ? strspn(p, legal) : 0;

	if (len == 0 || len >= size || p[len] != ':')
		return NULL;
	memcpy(out, p, len);
	out[len] = '\0';
	return p + len + 1;
}

/* Checks the last part of an ARN.  Returns the name in it.  NULL: it is wrong. */
static const char *
resource_name(AwsTarget *t, const char *resource)
{
	const char *legal = LETTERS DIGITS "_-";
	const char				   *prefix = "";
	size_t						len;

	switch (t->service)
	{
		case AWS_SQS:
		case AWS_SNS:
			len = strlen(resource);
			t->fifo = len > 5 && strcmp(resource + len - 5, ".fifo") == 0;
			return len > 0 && len <= 256 &&
					strspn(resource, legal) == len - (t->fifo ? 5 : 0) ?
				resource :
				NULL;
		case AWS_EVENTS:
			prefix = "event-bus/";
			legal = LETTERS DIGITS "_-./";
			break;
		case AWS_KINESIS:
			prefix = "stream/";
			legal = LETTERS DIGITS "_-.";
			break;
	}
	if (strncmp(resource, prefix, strlen(prefix)) != 0)
		return NULL;
	resource += strlen(prefix);
	len = strlen(resource);
	return len > 0 && len <= 256 && strspn(resource, legal) == len ? resource : NULL;
}

static const char *
take_url(AwsTarget *t, const char *url)
{
	const char *host;
	size_t		len;

	t->encrypted = strncasecmp(url, "https://", 8) == 0;
	if (!t->encrypted && strncasecmp(url, "http://", 7) != 0)
		return "endpoint_url begins with neither https:// nor http://";
	host = url + (t->encrypted ? 8 : 7);
	len = sink_host_port(host);
	if (len == 0 || host[len + (host[len] == '/')] != '\0')
		return "endpoint_url is not a scheme, a host and a port";
	if ((size_t) snprintf(t->url, sizeof(t->url), "%.*s/", (int) (host + len - url),
						  url) >= sizeof(t->url))
		return "endpoint_url is too long";
	return NULL;
}

const char *
aws_target_parse(const char *arn, const char *endpoint_url, AwsTarget *t)
{
	char		partition[24];
	char		service[24];
	char		account[16];
	const char *p = arn;
	const char *name;
	const char *domain;
	const char *problem = NULL;

	memset(t, 0, sizeof(*t));
	if (strncmp(p, "arn:", 4) != 0 || strlen(arn) >= sizeof(t->arn))
		return "the URL is no ARN, like arn:aws:sqs:eu-central-1:123456789012:orders";
	p = take(p + 4, LOWER DIGITS "-", partition, sizeof(partition));
	p = take(p, LOWER DIGITS, service, sizeof(service));
	p = take(p, LOWER DIGITS "-", t->region, sizeof(t->region));
	p = take(p, DIGITS, account, sizeof(account));
	if (p == NULL || strlen(account) != 12)
		return "the ARN is not arn:aws:SERVICE:REGION:ACCOUNT:RESOURCE, with 12 digits for the account";
	for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++)
		if (strcmp(services[i].name, service) == 0)
		{
			t->service = (AwsService) i;
			t->facts = &services[i];
		}
	if (t->facts == NULL)
		return "the ARN's service is none of sqs, sns, events, kinesis";
	name = resource_name(t, p);
	if (name == NULL)
		return "the ARN's last part is no queue, no topic, no event-bus/NAME or no stream/NAME";
	strcpy(t->arn, arn);

	domain = aws_partition_domain(partition);
	if (endpoint_url)
		problem = take_url(t, endpoint_url);
	else if (domain)
	{
		t->encrypted = true;
		snprintf(t->url, sizeof(t->url), "https://%s.%s.%s/", service, t->region, domain);
	}
	else
		problem = "the ARN's partition is not known, so it needs an endpoint_url";
	if (problem == NULL && t->service == AWS_SQS &&
		(size_t) snprintf(t->queue_url, sizeof(t->queue_url), "%s%s/%s", t->url, account,
						  name) >= sizeof(t->queue_url))
		problem = "endpoint_url is too long";
	return problem;
}
