/*
 * kafka_msk.c
 *	  Owns the names of Amazon MSK's brokers, and their regions.
 *
 * A token says nothing of the cluster that it is for.  Any cluster of the region accepts
 * it for a quarter of an hour, for all that its keys may do.  So a token with the keys of
 * the machine's role goes to brokers with Amazon's names only.  TLS proves the name.
 */
#include "kafka_msk.h"

#include <string.h>

#include "../aws/aws_partition.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

static bool
is_region(const char *text, size_t len)
{
	return len > 0 && len < KAFKA_MSK_REGION_MAX &&
		strspn(text, LOWER DIGITS "-") >= len && memchr(text, '-', len) != NULL &&
		strchr(DIGITS, text[len - 1]) != NULL;
}

/* Takes the last label off.  Returns it.  NULL: the name has no other label before. */
static const char *
last_label(const char *host, size_t *len, size_t *label_len)
{
	for (size_t i = *len; i > 1; i--)
		if (host[i - 1] == '.')
		{
			*label_len = *len - i;
			*len = i - 1;
			return host + i;
		}
	return NULL;
}

bool
kafka_msk_host(const char *host, size_t len, char *region)
{
	static const char *const services[] = {"kafka", "kafka-serverless"};
	size_t					 before = 0;
	size_t					 label_len;
	const char				*label;

	for (size_t i = 0; i < AWS_PARTITIONS; i++)
	{
		const char *domain = aws_partitions[i].domain;
		size_t		end = len - strlen(domain);

		if (len > strlen(domain) && host[end - 1] == '.' &&
			memcmp(host + end, domain, strlen(domain)) == 0)
			before = end - 1;
	}
	label = last_label(host, &before, &label_len);
	if (label == NULL || !is_region(label, label_len))
		return false;
	memcpy(region, label, label_len);
	region[label_len] = '\0';
	label = last_label(host, &before, &label_len);
	for (size_t i = 0; label && i < N(services); i++)
		if (strlen(services[i]) == label_len &&
			memcmp(label, services[i], label_len) == 0)
			return true;
	return false;
}

const char *
kafka_msk_region(const char *brokers, const char *given, bool of_role, char *region,
				 const char **hint)
{
	char found[KAFKA_MSK_REGION_MAX];

	*hint =
		"Name it as in config => '{\"sasl\": \"AWS_MSK_IAM\", \"region\": \"eu-central-1\"}'.";
	region[0] = '\0';
	if (given && !is_region(given, strlen(given)))
		return "region in config is no region of AWS";
	if (given)
		strcpy(region, given);
	for (const char *p = brokers; *p; p += strcspn(p, ","), p += *p == ',')
	{
		if (kafka_msk_host(p, strcspn(p, ":,"), found))
		{
			if (region[0] && strcmp(region, found) != 0)
			{
				*hint = "A token is for one region, that of the cluster.";
				return given ?
					"a broker in the URL is in another region than that of config" :
					"brokers in the URL are in different regions";
			}
			strcpy(region, found);
		}
		else if (of_role)
		{
			*hint =
				"Use the names that Amazon gives to brokers, like b-1.shop.a1b2c3.c2.kafka.eu-central-1.amazonaws.com, or keys in credentials.";
			return "a broker in the URL has no name of Amazon MSK, so it does not get the keys of the role";
		}
	}
	return region[0] ? NULL : "the region of the brokers is not known";
}

bool
kafka_msk_is_broker(const char *id, const char *region)
{
	const char *host = strstr(id, "://");
	char		found[KAFKA_MSK_REGION_MAX];

	host = host ? host + 3 : id;
	return kafka_msk_host(host, strcspn(host, ":/"), found) && strcmp(found, region) == 0;
}
