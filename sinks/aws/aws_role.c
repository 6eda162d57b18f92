/*
 * aws_role.c
 *	  Owns the keys of a role: where they are fetched, when, and until when they are used.
 *
 * An endpoint with them spends the rights of the machine.  So the setting outbox.aws_role
 * has to name the source, and where that is stands in the environment of the server, in
 * the variables that AWS's own libraries read.  Nothing of it comes from SQL.
 *
 * There is one fetch for all endpoints of a worker.  New keys are fetched before the old
 * ones end.  While that fails, the old ones are used until they end.
 */
#include "aws_role.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../sink.h"
#include "aws_partition.h"
#include "aws_role_read.h"
#include "common/pg_prng.h"
#include "utils/guc.h"

#define IMDS "http://169.254.169.254"
#define CONTAINERS "http://169.254.170.2"
#define TOKEN_TTL "60" /* s, for which IMDS accepts its token */
#define TOKEN_MAX 8192 /* bytes of a token, also of one in a file */
#define URL_MAX 1024

/* ms */
#define CONNECT_TIMEOUT 1000 /* of services on the machine */
#define TIMEOUT 2000
#define STS_TIMEOUT 10000
#define RETRY_FIRST 1000
#define RETRY_MAX 15000
#define REFRESH_BEFORE (10 * 60 * 1000) /* the end of keys */
#define REFRESH_AT_LEAST 500
#define REFUSED_EVERY 5000 /* keys that were refused are fetched again, at most */

typedef enum Source
{
	SOURCE_NONE,
	SOURCE_IMDS,
	SOURCE_CONTAINER,
	SOURCE_WEB_IDENTITY
} Source;

/* In the order of Source */
static const char *const sources[] = {"none", "imds", "container", "web_identity"};

/* The answer that a request asks for. */
typedef enum Step
{
	STEP_TOKEN, /* of IMDS */
	STEP_NAME,	/* of the role */
	STEP_KEYS,
	STEP_STS
} Step;

int32_t aws_role_user;

static Source		 source;
static int			 users;
static AwsKeys		 keys;
static char			*former_token; /* of the keys before */
static unsigned		 version;	   /* of the keys */
static int64		 valid_until;  /* ms */
static int64		 fetched_at;   /* ms (0: never) */
static int64		 due_at;	   /* ms, if there are users and no request */
static int			 backoff;
static AwsRequest	*request; /* NULL: none is in flight */
static Step			 step;
static char			 imds_token[TOKEN_MAX + 1];
static char			 reason[160];
static AwsRoleAnswer answer;

static Source
read_source(void)
{
	const char *value = GetConfigOption("outbox.aws_role", true, false);

	for (size_t i = 0; value && i < lengthof(sources); i++)
		if (strcmp(value, sources[i]) == 0)
			return (Source) i;
	return SOURCE_NONE;
}

bool
aws_role_is_set(void)
{
	return read_source() != SOURCE_NONE;
}

static void
forget(void)
{
	aws_keys_wipe(&keys);
	outbox_wipe(&former_token);
	explicit_bzero(imds_token, sizeof(imds_token));
	explicit_bzero(&answer, sizeof(answer));
	request = NULL; /* a request in flight is not awaited any more */
	fetched_at = 0;
	backoff = 0;
	due_at = sink_now_ms();
	strlcpy(reason,
			source == SOURCE_NONE ? "outbox.aws_role is none" :
									"the keys of the role are being fetched",
			sizeof(reason));
}

void
aws_role_reload(void)
{
	Source now = read_source();

	if (now != source || users == 0)
	{
		source = now;
		forget();
	}
	backoff = 0;
	due_at = sink_now_ms();
}

void
aws_role_join(void)
{
	if (users++ == 0)
		forget();
}

void
aws_role_leave(void)
{
	if (--users == 0)
		forget();
}

const AwsKeys *
aws_role_keys(void)
{
	return keys.access_key_id && sink_now_ms() < valid_until ? &keys : NULL;
}

const char *
aws_role_reason(void)
{
	return reason;
}

unsigned
aws_role_version(void)
{
	return aws_role_keys() ? version : 0;
}

void
aws_role_refused(void)
{
	due_at = Min(due_at, fetched_at + REFUSED_EVERY);
}

bool
aws_role_is_given_away(const char *words)
{
	return (keys.session_token && aws_gives_away(words, keys.session_token)) ||
		(former_token && aws_gives_away(words, former_token));
}

/* ------------------------------------------------------------ fetching */

static double
between(double low, double high)
{
	return low + (high - low) * pg_prng_double(&pg_global_prng_state);
}

static void
fail(const char *words)
{
	backoff = backoff ? Min(backoff * 2, RETRY_MAX) : RETRY_FIRST;
	due_at = sink_now_ms() + (int64) (backoff * between(0.5, 1));
	snprintf(reason, sizeof(reason), "no keys of the role (%s): %s", sources[source],
			 words);
}

static const char *
variable(const char *name)
{
	const char *value = getenv(name);

	return value && value[0] ? value : NULL;
}

/* True if it fits into a header.  A token may have a word like Basic before it. */
static bool
is_token(const char *text)
{
	size_t len = strlen(text);

	for (size_t i = 0; i < len; i++)
		if (text[i] < 0x20 || text[i] > 0x7e)
			return false;
	return len > 0 && len < TOKEN_MAX;
}

/*
 * Reads a token from a file that the server's environment names, without the newline at
 * its end.  False: it cannot be used.
 */
static bool
read_token_file(const char *path, char *token)
{
	int			fd = open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	ssize_t		n = -1;
	ssize_t		len = 0;

	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		while ((n = read(fd, token + len, TOKEN_MAX - len)) > 0)
			len += n;
	if (fd >= 0)
		close(fd);
	while (len > 0 && (token[len - 1] == '\n' || token[len - 1] == '\r'))
		len--;
	token[len] = '\0';
	return n == 0 && strlen(token) == (size_t) len && is_token(token);
}

/* Sends a request.  The header's value is NULL: there is none. */
static void
ask(Step what, const char *method, const char *url, const char *header, const char *value,
	AwsRequest *r)
{
	AwsPlain	plain = {.method = method,
						 .url = url,
						 .header = value ? header : NULL,
						 .value = value,
						 .metadata = what != STEP_STS,
						 .connect_timeout = what == STEP_STS ? STS_TIMEOUT / 2 :
															   CONNECT_TIMEOUT,
						 .timeout = what == STEP_STS ? STS_TIMEOUT : TIMEOUT};
	const char *problem;

	if (r == NULL)
		r = aws_http_acquire();
	if (r)
		r->rest.endpoint = aws_role_user;
	problem = r ? aws_http_start_plain(r, &plain) : "out of memory";
	if (problem)
	{
		if (r)
			aws_http_release(r);
		fail(problem);
		return;
	}
	step = what;
	request = r;
}

static void
ask_imds(Step what, const char *path, const char *name)
{
	const char *base = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	char		url[URL_MAX];
	size_t		len;

	if (base == NULL)
		base = IMDS;
	len = strlen(base);
	while (len > 0 && base[len - 1] == '/')
		len--;
	if ((size_t) snprintf(url, sizeof(url), "%.*s/latest/%s%s", (int) Min(len, URL_MAX),
						  base, path, name) >= sizeof(url))
		fail("AWS_EC2_METADATA_SERVICE_ENDPOINT is too long");
	else if (what == STEP_TOKEN)
		ask(what, "PUT", url, "X-aws-ec2-metadata-token-ttl-seconds", TOKEN_TTL, NULL);
	else
		ask(what, "GET", url, "X-aws-ec2-metadata-token", imds_token, NULL);
}

static void
ask_container(void)
{
	const char *relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	const char *file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *given = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	char		token[TOKEN_MAX + 1];
	char		url[URL_MAX];

	if (relative == NULL && full == NULL)
		fail("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and ..._FULL_URI are not set");
	else if ((size_t) snprintf(url, sizeof(url), "%s%s%s", relative ? CONTAINERS : "",
							   relative && relative[0] != '/' ? "/" : "",
							   relative ? relative : full) >= sizeof(url))
		fail("the URI of the container's credentials is too long");
	else if (file && !read_token_file(file, token))
		fail("the file AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE cannot be used");
	else if (file == NULL && given && !is_token(given))
		fail("AWS_CONTAINER_AUTHORIZATION_TOKEN cannot be used");
	else
		ask(STEP_KEYS, "GET", url, "Authorization", file ? token : given, NULL);
	explicit_bzero(token, sizeof(token));
}

static void
add_field(AwsText *body, const char *name, const char *value)
{
	aws_add_text(body, name);
	aws_add_percent(body, value, strlen(value));
}

static void
ask_sts(void)
{
	const char *arn = variable("AWS_ROLE_ARN");
	const char *file = variable("AWS_WEB_IDENTITY_TOKEN_FILE");
	const char *session = variable("AWS_ROLE_SESSION_NAME");
	const char *region = variable("AWS_REGION");
	const char *given = variable("AWS_ENDPOINT_URL_STS");
	char		token[TOKEN_MAX + 1];
	char		url[URL_MAX];
	AwsRequest *r;

	if (region == NULL)
		region = variable("AWS_DEFAULT_REGION");
	if (arn == NULL || file == NULL)
	{
		fail("AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE are not set");
		return;
	}
	if (!read_token_file(file, token))
	{
		fail("the file AWS_WEB_IDENTITY_TOKEN_FILE cannot be used");
		return;
	}
	if (given)
		snprintf(url, sizeof(url), "%s", given);
	else if (region)
		snprintf(url, sizeof(url), "https://sts.%s.%s/", region,
				 aws_region_domain(region));
	else
		snprintf(url, sizeof(url), "https://sts.amazonaws.com/");
	r = aws_http_acquire();
	if (r)
	{
		add_field(&r->body,
				  "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=", arn);
		add_field(&r->body, "&RoleSessionName=", session ? session : "outbox");
		add_field(&r->body, "&WebIdentityToken=", token);
	}
	explicit_bzero(token, sizeof(token));
	if (r)
		ask(STEP_STS, "POST", url, NULL, NULL, r);
	else
		fail("out of memory");
}

void
aws_role_step(void)
{
	if (users == 0 || request || source == SOURCE_NONE || sink_now_ms() < due_at)
		return;
	if (source == SOURCE_IMDS)
		ask_imds(STEP_TOKEN, "api/token", "");
	else if (source == SOURCE_CONTAINER)
		ask_container();
	else
		ask_sts();
}

long
aws_role_timeout(void)
{
	int64 wait = due_at - sink_now_ms();

	if (users == 0 || request || source == SOURCE_NONE)
		return -1;
	return wait > 0 ? (long) wait : 0;
}

/* ------------------------------------------------------------- answers */

static void
take_keys(const AwsRequest *r)
{
	const char *data = r->answer.data ? r->answer.data : "";
	const char *problem = step == STEP_STS ?
		aws_role_read_xml(data, r->answer.len, &answer) :
		aws_role_read_json(data, r->answer.len, &answer);
	AwsKeys		fresh = {0};
	int64		left = (answer.expires - (int64) time(NULL)) * 1000;

	if (problem == NULL && left <= 0)
		problem = "the keys have ended";
	if (problem == NULL)
	{
		fresh.access_key_id = strdup(answer.access_key_id);
		fresh.secret_access_key = strdup(answer.secret_access_key);
		fresh.session_token = strdup(answer.session_token);
		if (fresh.access_key_id == NULL || fresh.secret_access_key == NULL ||
			fresh.session_token == NULL)
		{
			aws_keys_wipe(&fresh);
			problem = "out of memory";
		}
	}
	explicit_bzero(&answer, sizeof(answer));
	if (problem)
	{
		fail(problem);
		return;
	}
	outbox_wipe(&former_token);
	former_token = keys.session_token;
	keys.session_token = NULL;
	aws_keys_wipe(&keys);
	keys = fresh;
	version++;
	backoff = 0;
	fetched_at = sink_now_ms();
	valid_until = fetched_at + left;

	/* Servers that were started together do not ask together. */
	left = left > 2 * REFRESH_BEFORE ? left - REFRESH_BEFORE : left / 2;
	due_at = fetched_at + Max((int64) (left * between(0.8, 1)), REFRESH_AT_LEAST);
	strlcpy(reason, "the keys of the role have ended", sizeof(reason));
}

/* The first line, which is one word of at most 'size' - 1 bytes. */
static bool
take_line(const AwsRequest *r, char *out, size_t size)
{
	const char *data = r->answer.data ? r->answer.data : "";
	const char *end = memchr(data, '\n', r->answer.len);
	size_t		len = end ? (size_t) (end - data) : r->answer.len;

	if (!aws_role_is_word(data, len, size - 1))
		return false;
	memcpy(out, data, len);
	out[len] = '\0';
	return true;
}

static void
take_answer(const AwsRequest *r)
{
	char name[65];

	switch (step)
	{
		case STEP_TOKEN:
			if (take_line(r, imds_token, sizeof(imds_token)))
				ask_imds(STEP_NAME, "meta-data/iam/security-credentials/", "");
			else
				fail("its token cannot be used");
			break;
		case STEP_NAME:
			if (take_line(r, name, sizeof(name)) && strpbrk(name, "/?#%\\") == NULL)
				ask_imds(STEP_KEYS, "meta-data/iam/security-credentials/", name);
			else
				fail("the name of the role cannot be used");
			break;
		case STEP_KEYS:
		case STEP_STS:
			take_keys(r);
			break;
	}
}

/* The code in an error of STS.  Its words may repeat the token. */
static void
say_refusal(const AwsRequest *r, int status, char *words, size_t size)
{
	(void) aws_role_read_xml(r->answer.data ? r->answer.data : "", r->answer.len,
							 &answer);
	if (step == STEP_STS && aws_role_is_word(answer.code, strlen(answer.code), 50))
		snprintf(words, size, "STS: %s", answer.code);
	else if (step == STEP_NAME && status == 404)
		snprintf(words, size, "the machine has no role");
	else
		snprintf(words, size, "%s (status %d)",
				 step == STEP_TOKEN ? "it gives no token" : "it gives no keys", status);
	explicit_bzero(&answer, sizeof(answer));
}

bool
aws_role_ended(AwsRequest *r, const AwsEnd *end)
{
	int64 before = fetched_at;
	char  words[100];

	if (r != request)
	{
		aws_http_release(r);
		return false;
	}
	request = NULL;
	if (end->status == 200)
		take_answer(r);
	else if (end->status == 0)
		fail(end->words);
	else
	{
		say_refusal(r, end->status, words, sizeof(words));
		fail(words);
	}
	aws_http_release(r);
	return fetched_at != before;
}
