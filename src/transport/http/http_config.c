/*
 * http_config.c
 *	  Owns the config of webhooks: which entries it may have, and their meaning.
 */
#include "transport/http/http_internal.h"

const char *const outbox_http_config_names[] = {"http_version",
												"method",
												"token_url",
												"client_id",
												"scope",
												"audience",
												"token_auth",
												OUTBOX_PROFILE_OPTIONS,
												NULL};

const char *const outbox_http_credential_names[] =
	{"username",		   "password",	 "token",		   "client_secret",
	 "client_certificate", "client_key", "ca_certificate", NULL};

const char *
outbox_http_method(const OutboxTarget *target)
{
	static const char *const methods[] = {"PUT", "PATCH"};
	const char				*value = outbox_http_option(target, "method");

	for (size_t i = 0; value && i < lengthof(methods); i++)
		if (strcmp(value, methods[i]) == 0)
			return methods[i];
	return NULL;
}

const char *
outbox_http_profile(const OutboxTarget *target, OutboxProfile *profile, const char **hint)
{
	const char			*name = outbox_http_option(target, "signature");
	const OutboxProfile *from = outbox_profile_find(name ? name : "standard");

	if (from == NULL)
	{
		*hint = OUTBOX_PROFILE_NAMES_HINT;
		return "signature is not known";
	}
	*profile = *from;
	for (int i = 0; i < target->nconfig; i++)
	{
		const char *problem = outbox_profile_set(profile, target->config[i].name,
												 target->config[i].value, hint);

		if (problem)
			return problem;
	}
	return outbox_profile_check(profile, hint);
}

static bool
has(const OutboxTarget *target, const char *name)
{
	return outbox_option_find(target->credentials, target->ncredentials, name) != NULL;
}

const char *
outbox_http_auth_problem(const OutboxTarget *target, OutboxAdvice *advice)
{
	const char *token_url = outbox_http_option(target, "token_url");
	bool		basic = has(target, "username") || has(target, "password");
	bool		oauth = token_url || has(target, "client_secret") ||
		outbox_http_option(target, "client_id") || outbox_http_option(target, "scope") ||
		outbox_http_option(target, "audience") ||
		outbox_http_option(target, "token_auth");
	const char *auth = outbox_http_option(target, "token_auth");
	const char *problem;

	advice->hint =
		"Use username and password, or token, or client_secret with token_url and client_id in config.";
	advice->field = "credentials";
	if (basic + has(target, "token") + oauth > 1)
		return "there are several ways to authenticate";
	if (basic && !(has(target, "username") && has(target, "password")))
		return "username and password belong together";
	if (oauth && has(target, "client_secret"))
		advice->field = "config";
	if (oauth &&
		!(token_url && has(target, "client_secret") &&
		  outbox_http_option(target, "client_id")))
		return "OAuth needs token_url, client_id and client_secret";
	advice->field = "config";
	if (token_url && (problem = outbox_http_check_url(token_url, &advice->hint)) != NULL)
		return problem;
	if (auth && strcmp(auth, "basic") != 0 && strcmp(auth, "post") != 0)
	{
		advice->hint =
			"Use basic (a header of the token request, the default) or post (its form).";
		return "token_auth is not known";
	}
	advice->field = "credentials";
	advice->hint =
		"A client_certificate and its client_key are in PEM, as is a ca_certificate. They need https.";
	if (has(target, "client_certificate") != has(target, "client_key"))
		return "client_certificate and client_key belong together";
	if ((has(target, "client_certificate") || has(target, "ca_certificate")) &&
		strncasecmp(target->url, "https:", 6) != 0)
		return "certificates need https";
	return NULL;
}

static bool
same_option(const OutboxTarget *a, const OutboxTarget *b, const char *name)
{
	const char *x = outbox_http_option(a, name);
	const char *y = outbox_http_option(b, name);

	return x && y ? strcmp(x, y) == 0 : x == y;
}

/* A URL of a sink that is not there comes here, too. */
bool
outbox_http_keeps_credentials(const OutboxTarget *from, const OutboxTarget *to)
{
	return strncasecmp(from->url, "http", 4) == 0 && strcmp(from->url, to->url) == 0 &&
		same_option(from, to, "token_url");
}

const char *
outbox_http_check_target(const OutboxTarget *target, OutboxAdvice *advice)
{
	const char	 *method = outbox_http_option(target, "method");
	const char	 *problem = outbox_http_version_problem(target, &advice->hint);
	OutboxProfile profile;

	advice->field = "config";
	if (problem == NULL && method && strcmp(method, "POST") != 0 &&
		outbox_http_method(target) == NULL)
	{
		advice->hint = "Use POST, PUT or PATCH.";
		problem = "method is not known";
	}
	if (problem == NULL)
		problem = outbox_http_profile(target, &profile, &advice->hint);
	return problem ? problem : outbox_http_auth_problem(target, advice);
}
