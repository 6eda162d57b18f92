/*
 * http_config.c
 *	  Owns the config of webhooks: which entries it may have, and what they mean.
 */
#include "transport/http/http_internal.h"

const char *const outbox_http_config_names[] = {"http_version", "method",
												OUTBOX_PROFILE_OPTIONS, NULL};

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

const char *
outbox_http_check_target(const OutboxTarget *target, const char **hint,
						 const char **notice)
{
	const char	 *method = outbox_http_option(target, "method");
	const char	 *problem = outbox_http_version_problem(target, hint);
	OutboxProfile profile;

	(void) notice;
	if (problem == NULL && method && strcmp(method, "POST") != 0 &&
		outbox_http_method(target) == NULL)
	{
		*hint = "Use POST, PUT or PATCH.";
		problem = "method is not known";
	}
	return problem ? problem : outbox_http_profile(target, &profile, hint);
}
