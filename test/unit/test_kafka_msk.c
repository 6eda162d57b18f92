/*
 * test_kafka_msk.c
 *	  A token for Amazon MSK is signed as botocore signs it.  Names of brokers say their
 *	  region, and no others are taken for Amazon's (TAP).
 *
 * links: sinks/kafka/kafka_msk.c sinks/aws/aws_sign.c sinks/aws/aws_text.c
 */
#include <stdlib.h>
#include <string.h>

#include "../../sinks/aws/aws_sign.h"
#include "../../sinks/kafka/kafka_msk.h"
#include "../../sinks/sink.h"
#include "tap.h"

#define MSK ".c2.kafka.eu-central-1.amazonaws.com"

/* The URL that the token is, "" if it is none */
static void
decode(const char *token, char *url)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	unsigned bits = 0;
	int		 n = 0;

	for (; *token && strchr(digits, *token); token++)
	{
		bits = bits << 6 | (unsigned) (strchr(digits, *token) - digits);
		n += 6;
		if (n >= 8)
			*url++ = (char) (bits >> (n -= 8) & 255);
	}
	*url = '\0';
}

static void
is_signed(AwsKeys keys, const char *region, const char *expected)
{
	char *token = aws_sign_msk(&keys, region, 1700000000);
	char  url[2000] = "";

	if (token && strlen(token) < sizeof(url))
		decode(token, url);
	ok(strcmp(url, expected) == 0, region, url, expected);
	outbox_wipe(&token);
}

/* What "X-Amz-Signature" is was computed by SigV4QueryAuth of botocore 1.44.5. */
static void
test_tokens(void)
{
	is_signed((AwsKeys){"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", NULL},
			  "eu-central-1",
			  "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
			  "&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20231114"
			  "%2Feu-central-1%2Fkafka-cluster%2Faws4_request&X-Amz-Date=20231114T221320Z"
			  "&X-Amz-Expires=900&X-Amz-SignedHeaders=host&X-Amz-Signature="
			  "674a7efeeb19a92e44b849bf3ea778a9c78e68ad0bac99e834ab2ea6139ac226"
			  "&User-Agent=outbox");
	is_signed(
		(AwsKeys){"AKIDEXAMPLE", "s/e+c=r", "t/o+k=en&"}, "us-gov-west-1",
		"https://kafka.us-gov-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
		"&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20231114"
		"%2Fus-gov-west-1%2Fkafka-cluster%2Faws4_request&X-Amz-Date=20231114T221320Z"
		"&X-Amz-Expires=900&X-Amz-Security-Token=t%2Fo%2Bk%3Den%26"
		"&X-Amz-SignedHeaders=host&X-Amz-Signature="
		"9a240945d9fc14778bb25bf785c92c95a6b4087b6ca6cf7c62d5c5058fcc0c88"
		"&User-Agent=outbox");
}

static void
is_in(const char *host, const char *expected)
{
	char region[KAFKA_MSK_REGION_MAX] = "none";

	if (!kafka_msk_host(host, strlen(host), region))
		strcpy(region, "none");
	ok(strcmp(region, expected) == 0, host, region, expected);
}

static void
test_hosts(void)
{
	static const char *const others[] =
		{"kafka.eu-central-1.amazonaws.com.evil.example",
		 "b-1.kafka.eu-central-1.amazonaws.com.evil",
		 "b-1.kafka.eu-central-1.evilamazonaws.com",
		 "b-1.kafka.eu-central-1-amazonaws.com",
		 "b-1.kafkas.eu-central-1.amazonaws.com",
		 "b-1.evil-kafka.eu-central-1.amazonaws.com",
		 "b-1.kafka.evil.eu-central-1.amazonaws.com",
		 "b-1.kafka.s3.amazonaws.com",
		 "kafka.eu-central-1.amazonaws.com",
		 ".kafka.eu-central-1.amazonaws.com",
		 "eu-central-1.amazonaws.com",
		 ".amazonaws.com",
		 "amazonaws.com",
		 "b-1.kafka..amazonaws.com",
		 "b-1.kafka.-.amazonaws.com",
		 "b-1.kafka.EU-CENTRAL-1.amazonaws.com",
		 "b-1.kafka.eu/central-1.amazonaws.com",
		 "b-1.kafka.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-1.amazonaws.com",
		 "127.0.0.1",
		 ""};

	is_in("b-1.shop.a1b2c3" MSK, "eu-central-1");
	is_in("b-1-public.shop.a1b2c3" MSK, "eu-central-1");
	is_in("boot-a1b2c3.c1.kafka-serverless.us-east-2.amazonaws.com", "us-east-2");
	is_in("b-1.shop.a1b2c3.c2.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1");
	is_in("b-1.shop.a1b2c3.c2.kafka.us-gov-west-1.amazonaws.com", "us-gov-west-1");
	is_in("b-1.shop.a1b2c3.c2.kafka.eusc-de-east-1.amazonaws.eu", "eusc-de-east-1");
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		is_in(others[i], "none");
}

static void
becomes(const char *brokers, const char *given, bool of_role, const char *expected)
{
	char		region[KAFKA_MSK_REGION_MAX];
	const char *hint = NULL;
	const char *problem = kafka_msk_region(brokers, given, of_role, region, &hint);
	const char *got = problem ? problem : region;

	ok(strstr(got, expected) && hint, brokers, got, expected);
}

static void
test_regions(void)
{
	becomes("b-1" MSK ":9098,b-2" MSK ":9098", NULL, true, "eu-central-1");
	becomes("b-1" MSK, "eu-central-1", true, "eu-central-1");
	becomes("b-1" MSK ":9098,b-2" MSK, "eu-central-2", false, "in another region");
	becomes("b-1" MSK ",b-2.kafka.us-east-1.amazonaws.com", NULL, false,
			"in different regions");
	becomes("10.0.0.1:9098", "eu-west-1", false, "eu-west-1");
	becomes("10.0.0.1:9098", "EU", false, "no region of AWS");
	becomes("10.0.0.1:9098", "", false, "no region of AWS");
	becomes("10.0.0.1:9098", NULL, false, "is not known");
	becomes("[::1]:9098,b-1" MSK, NULL, false, "eu-central-1");
	becomes("b-1" MSK ",10.0.0.1", NULL, true, "no name of Amazon MSK");
	becomes("10.0.0.1", "eu-west-1", true, "no name of Amazon MSK");
}

static void
test_brokers(void)
{
	ok(kafka_msk_is_broker("sasl_ssl://b-1" MSK ":9098/1", "eu-central-1"), "a broker",
	   "", "");
	ok(kafka_msk_is_broker("b-1" MSK ":9098", "eu-central-1"), "another", "", "");
	ok(!kafka_msk_is_broker("sasl_ssl://b-1" MSK ":9098/1", "eu-central-2"),
	   "of another region", "", "");
	ok(!kafka_msk_is_broker("sasl_ssl://h:1/x" MSK, "eu-central-1"), "a host", "", "");
	ok(!kafka_msk_is_broker("sasl_ssl://h/://b-1" MSK, "eu-central-1"), "a path", "", "");
}

int
main(void)
{
	test_tokens();
	test_hosts();
	test_regions();
	test_brokers();
	return done_testing();
}
