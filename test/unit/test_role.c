/*
 * test_role.c
 *	  What services that give out keys may say, and where they may be (TAP).
 *
 * links: src/base/json_read.c sinks/aws/aws_role_read.c sinks/aws/aws_xml.c
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "../../sinks/aws/aws_role_read.h"
#include "tap.h"

static AwsRoleAnswer answer;

static void
test_times(void)
{
	static const char *const bad[] = {"",
									  "soon",
									  "2026-11-23",
									  "2026-11-23T16:00:00",
									  "2026-11-23T16:00:00+01:00",
									  "2026-13-23T16:00:00Z",
									  "2026-11-23T24:00:00Z",
									  "2026-11-23T16:00:00ZZ",
									  "2026-11-23 16:00:00Z",
									  "99999-11-23T16:00:00Z",
									  "-026-11-23T16:00:00Z",
									  "2026-1-2T3:4:5Z"};
	static const struct
	{
		const char *text;
		long long	time;
	} good[] = {{"1970-01-01T00:00:00Z", 0},
				{"2000-02-29T23:59:59Z", 951868799},
				{"2026-11-23T16:00:00Z", 1795449600},
				{"2026-11-23T16:00:00.123Z", 1795449600},
				{"2099-12-31T00:00:00Z", 4102358400}};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ok(aws_role_time(bad[i]) == -1, "no time", bad[i], "");
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		ok(aws_role_time(good[i].text) == good[i].time, "time", good[i].text, "");
}

static void
test_keys(void)
{
	static const char json[] =
		"{\"Code\": \"Success\", \"More\": {\"Token\": \"x\"}, \"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\\/e\", \"Token\": \"t+\", \"Expiration\": \"2026-11-23T16:00:00Z\"}";
	static const char xml[] =
		"<R><X><AccessKeyId>no</AccessKeyId><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>S</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2026-11-23T16:00:00Z</Expiration></Credentials></X></R>";
	static const char *const bad[] = {
		"",
		"x",
		"[]",
		"{}",
		"null",
		"{\"AccessKeyId\": \"A\"}",
		"{\"AccessKeyId\": 1, \"SecretAccessKey\": \"S\", \"Token\": \"t\", \"Expiration\": \"2026-11-23T16:00:00Z\"}",
		"{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\", \"Token\": \"a b\", \"Expiration\": \"2026-11-23T16:00:00Z\"}",
		"{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\\n\", \"Token\": \"t\", \"Expiration\": \"2026-11-23T16:00:00Z\"}",
		"{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\", \"Token\": \"t\"}"};
	char *longest = calloc(1, 20000);

	ok(aws_role_read_json(json, strlen(json), &answer) == NULL &&
		   strcmp(answer.access_key_id, "A") == 0 &&
		   strcmp(answer.secret_access_key, "S/e") == 0 &&
		   strcmp(answer.session_token, "t+") == 0 && answer.expires == 1795449600,
	   "keys in JSON", json, "");
	ok(aws_role_read_xml(xml, strlen(xml), &answer) == NULL &&
		   strcmp(answer.access_key_id, "A") == 0 &&
		   strcmp(answer.session_token, "t") == 0 && answer.expires == 1795449600,
	   "keys in XML", xml, "");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
	{
		ok(aws_role_read_json(bad[i], strlen(bad[i]), &answer) != NULL, "no keys", bad[i],
		   "");
		ok(aws_role_read_xml(bad[i], strlen(bad[i]), &answer) != NULL, "nor in XML",
		   bad[i], "");
	}

	/* A token that does not fit is no token, rather than a part of one. */
	for (int size = AWS_ROLE_TEXT - 3; size <= AWS_ROLE_TEXT + 1; size++)
	{
		int n = sprintf(
			longest,
			"{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\", \"Expiration\": \"2026-11-23T16:00:00Z\", \"Token\": \"");

		memset(longest + n, 'x', (size_t) size);
		strcpy(longest + n + size, "\"}");
		ok((aws_role_read_json(longest, strlen(longest), &answer) == NULL) ==
			   (size <= AWS_ROLE_TEXT - 2),
		   "a long token", "", "");
	}
	free(longest);
}

static void
may(const char *text, bool expected)
{
	struct sockaddr_storage address = {0};

	if (inet_pton(AF_INET, text, &((struct sockaddr_in *) &address)->sin_addr) == 1)
		address.ss_family = AF_INET;
	else if (inet_pton(AF_INET6, text, &((struct sockaddr_in6 *) &address)->sin6_addr) ==
			 1)
		address.ss_family = AF_INET6;
	ok(aws_role_may_connect((struct sockaddr *) &address) == expected,
	   expected ? "may be asked" : "is not asked", text, "");
}

static void
test_addresses(void)
{
	static const char *const yes[] = {"169.254.169.254", "169.254.170.2",
									  "169.254.170.23",	 "127.0.0.1",
									  "127.255.0.1",	 "::1",
									  "fd00:ec2::254",	 "fd00:ec2::23"};
	static const char *const no[] =
		{"169.254.169.253", "169.254.170.3",	"10.0.0.1",	  "192.0.2.1",
		 "8.8.8.8",			"0.0.0.0",			"::",		  "fd00:ec2::2",
		 "::ffff:10.0.0.1", "::ffff:127.0.0.1", "2001:db8::1"};

	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
		may(yes[i], true);
	for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
		may(no[i], false);
	may("no address", false);
}

static void
test_words(void)
{
	ok(aws_role_is_word("abc", 3, 3), "a word", "abc", "");
	ok(!aws_role_is_word("abcd", 4, 3), "too long", "abcd", "");
	ok(!aws_role_is_word("", 0, 3), "empty", "", "");
	ok(!aws_role_is_word("a b", 3, 3), "a space", "a b", "");
	ok(!aws_role_is_word("a\r\n", 3, 3), "a line", "a", "");
	ok(!aws_role_is_word("a\0b", 3, 3), "a zero", "a", "");
	ok(!aws_role_is_word("\xc3\xbc", 2, 3), "not ASCII", "", "");
}

int
main(void)
{
	test_times();
	test_keys();
	test_addresses();
	test_words();
	return done_testing();
}
