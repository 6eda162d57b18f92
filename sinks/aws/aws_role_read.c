/*
 * aws_role_read.c
 *	  Owns the format of answers that give out keys, and the places where their services
 *	  may be.
 */
#include "aws_role_read.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../sink.h"
#include "aws_xml.h"

bool
aws_role_is_word(const char *data, size_t len, size_t longest)
{
	if (len == 0 || len > longest)
		return false;
	for (size_t i = 0; i < len; i++)
		if (data[i] <= 0x20 || data[i] >= 0x7f)
			return false;
	return true;
}

long long
aws_role_time(const char *text)
{
	struct tm	tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

	/* It would take spaces, and one digit for two. */
	if (rest != text + 19 || strspn(text, "0123456789-T:") < 19 || tm.tm_year < 70)
		return -1;
	if (*rest == '.')
		rest += 1 + strspn(rest + 1, "0123456789");
	return strcmp(rest, "Z") == 0 ? timegm(&tm) : -1;
}

static void
keep(char *to, size_t size, const char *value)
{
	snprintf(to, size, "%s", value);
}

static void
take(AwsRoleAnswer *a, const char *name, const char *value)
{
	if (strcmp(name, "AccessKeyId") == 0)
		keep(a->access_key_id, sizeof(a->access_key_id), value);
	else if (strcmp(name, "SecretAccessKey") == 0)
		keep(a->secret_access_key, sizeof(a->secret_access_key), value);
	else if (strcmp(name, "Token") == 0 || strcmp(name, "SessionToken") == 0)
		keep(a->session_token, sizeof(a->session_token), value);
	else if (strcmp(name, "Expiration") == 0)
		a->expires = aws_role_time(value);
	else if (strcmp(name, "Code") == 0)
		keep(a->code, sizeof(a->code), value);
}

static void
take_json(void *arg, const OutboxJsonItem *item)
{
	if (item->depth == 1 && item->kind == OUTBOX_JSON_STRING)
		take(arg, item->name, item->value);
}

static void
take_xml(void *arg, char path[][AWS_XML_NAME], int depth, bool begins, const char *text)
{
	if (!begins && depth >= 2 &&
		(strcmp(path[depth - 2], "Credentials") == 0 ||
		 strcmp(path[depth - 2], "Error") == 0))
		take(arg, path[depth - 1], text);
}

/* A text that is cut, or has other characters, is no key. */
static const char *
check(const AwsRoleAnswer *a)
{
	const size_t longest = AWS_ROLE_TEXT - 2;

	if (!aws_role_is_word(a->access_key_id, strlen(a->access_key_id), longest) ||
		!aws_role_is_word(a->secret_access_key, strlen(a->secret_access_key), longest) ||
		!aws_role_is_word(a->session_token, strlen(a->session_token), longest))
		return "the answer has no keys";
	if (a->expires <= 0)
		return "the answer does not say when the keys end";
	return NULL;
}

const char *
aws_role_read_json(const char *data, size_t len, AwsRoleAnswer *a)
{
	memset(a, 0, sizeof(*a));
	return outbox_json_read(data, len, take_json, a) ? check(a) : "the answer is no JSON";
}

const char *
aws_role_read_xml(const char *data, size_t len, AwsRoleAnswer *a)
{
	memset(a, 0, sizeof(*a));
	return aws_xml_read(data, len, take_xml, a) ? check(a) : "the answer is no XML";
}

bool
aws_role_may_connect(const struct sockaddr *address)
{
	static const char *const servers[] = {"169.254.169.254", "169.254.170.2",
										  "169.254.170.23",	 "fd00:ec2::254",
										  "fd00:ec2::23",	 "::1"};
	char					 text[INET6_ADDRSTRLEN];

	if (address->sa_family == AF_INET &&
		ntohl(((const struct sockaddr_in *) address)->sin_addr.s_addr) >> 24 == 127)
		return true;
	if (address->sa_family != AF_INET && address->sa_family != AF_INET6)
		return false;
	sink_address_text(address, text, sizeof(text));
	for (size_t i = 0; i < sizeof(servers) / sizeof(servers[0]); i++)
		if (strcmp(text, servers[i]) == 0)
			return true;
	return false;
}
