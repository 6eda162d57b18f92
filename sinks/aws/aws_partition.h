/*
 * aws_partition.h
 *	  The partitions of AWS, and the domains of their services.
 */
#ifndef OUTBOX_AWS_PARTITION_H
#define OUTBOX_AWS_PARTITION_H

#include <stddef.h>
#include <string.h>

#define AWS_PARTITIONS (sizeof(aws_partitions) / sizeof(aws_partitions[0]))

/* As botocore's partitions.json has them */
static const struct
{
	const char *name;	 /* in an ARN */
	const char *regions; /* how their names begin */
	const char *domain;
} aws_partitions[] = {
	{"aws", "", "amazonaws.com"},
	{"aws-cn", "cn-", "amazonaws.com.cn"},
	{"aws-eusc", "eusc-", "amazonaws.eu"},
	{"aws-iso", "us-iso-", "c2s.ic.gov"},
	{"aws-iso-b", "us-isob-", "sc2s.sgov.gov"},
	{"aws-iso-e", "eu-isoe-", "cloud.adc-e.uk"},
	{"aws-iso-f", "us-isof-", "csp.hci.ic.gov"},
	{"aws-us-gov", "us-gov-", "amazonaws.com"},
};

/* NULL: there is no such partition. */
static inline const char *
aws_partition_domain(const char *name)
{
	for (size_t i = 0; i < AWS_PARTITIONS; i++)
		if (strcmp(aws_partitions[i].name, name) == 0)
			return aws_partitions[i].domain;
	return NULL;
}

static inline const char *
aws_region_domain(const char *region)
{
	size_t found = 0;

	for (size_t i = 1; i < AWS_PARTITIONS; i++)
		if (strncmp(region, aws_partitions[i].regions,
					strlen(aws_partitions[i].regions)) == 0)
			found = i;
	return aws_partitions[found].domain;
}

#endif /* OUTBOX_AWS_PARTITION_H */
