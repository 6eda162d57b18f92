/*
 * endpoint_options.c
 *	  Owns config and credentials of endpoints: how they are checked, and how they are
 *	  read.
 *
 * A sink has a closed list of names for each.  No value of a credential is in an error.
 */
#include "base/outbox.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "base/encoding.h"
#include "base/json_members.h"
#include "base/json_text.h"
#include "base/settings.h"
#include "base/table_rows.h"
#include "base/version.h"
#include "emit/emit.h"
#include "endpoint/filter.h"
#include "store/endpoint_options.h"
#include "store/seal.h"
#include "store/secret_files.h"
#include "transport/host.h"
#include "transport/sinks.h"

#define CONFIG_MAX 1024						  /* bytes of a value */
#define CREDENTIAL_MAX OUTBOX_SECRET_FILE_MAX /* the same */

#define PEM "-----BEGIN " /* the one kind of credentials with line breaks */

/* Entries of config that are not the transport's: the template of the payload. */
#define SHAPE "payload"
#define SHAPE_NEEDS "payload_missing"
static const char *const shape_names[] = {SHAPE, SHAPE_NEEDS, NULL};

/* ------------------------------------------------------------- reading */

/* The value as JSON text, palloc'd. */
static char *
json_text(const JsonbValue *v)
{
	StringInfoData text;

	initStringInfo(&text);
	outbox_json_text(&text, JsonbValueToJsonb(unconstify(JsonbValue *, v)));
	return text.data;
}

/* The value as text, palloc'd.  NULL: it is no string, number or boolean. */
static char *
value_text(const JsonbValue *v)
{
	if (v->type == jbvString)
		return pnstrdup(v->val.string.val, v->val.string.len);
	return v->type == jbvNumeric || v->type == jbvBool ? json_text(v) : NULL;
}

/* The name in {"file": "name"}, palloc'd.  NULL: it is something else. */
static char *
file_name(const JsonbValue *v)
{
	JsonbValue	key = {.type = jbvString};
	JsonbValue *file;

	if (v->type != jbvBinary || !JsonContainerIsObject(v->val.binary.data) ||
		JsonContainerSize(v->val.binary.data) != 1)
		return NULL;
	key.val.string.val = "file";
	key.val.string.len = 4;
	file = findJsonbValueFromContainer(v->val.binary.data, JB_FOBJECT, &key);
	return file && file->type == jbvString ?
		pnstrdup(file->val.string.val, file->val.string.len) :
		NULL;
}

OutboxOption *
outbox_options_read(Jsonb *jb, int *n, uint32 *files)
{
	OutboxMembers m;
	OutboxOption *options;

	*n = 0;
	if (files)
		*files = 0;
	if (jb == NULL || !JB_ROOT_IS_OBJECT(jb) || JB_ROOT_COUNT(jb) == 0)
		return NULL;
	options = palloc(sizeof(OutboxOption) * JB_ROOT_COUNT(jb));
	m = outbox_members(jb);
	while (outbox_members_next(&m))
	{
		char *name = value_text(&m.name);
		char *value = value_text(&m.value);

		if (value == NULL && files == NULL && strcmp(name, SHAPE) == 0)
			value = json_text(&m.value);
		else if (value == NULL && files && *n < OUTBOX_OPTIONS_MAX &&
				 (value = file_name(&m.value)) != NULL)
			*files |= (uint32) 1 << *n;
		if (value)
			options[(*n)++] = (OutboxOption){name, value};
	}
	return options;
}

char *
outbox_options_sent_text(const char *text)
{
	size_t len = strlen(text);
	char  *utf8 = outbox_to_utf8(unconstify(char *, text), &len);

	return utf8 && utf8 != text ? utf8 : pstrdup(text);
}

OutboxOption *
outbox_options_read_files(const OutboxOption *options, int n, uint32 files,
						  uint64 *version, char *reason, size_t size)
{
	OutboxOption *result = palloc(sizeof(OutboxOption) * Max(n, 1));
	char		  problem[OUTBOX_SECRET_FILE_PROBLEM];

	*version = 0;
	for (int i = 0; i < n; i++)
	{
		uint64 one = 0;
		char  *value = outbox_option_is_file(files, i) ?
			 outbox_secret_file_read(options[i].value, &one, problem) :
			 outbox_options_sent_text(options[i].value);

		if (value == NULL)
		{
			snprintf(reason, size, "%s: %s", options[i].name, problem);
			outbox_options_wipe(result, i);
			*version = 0;
			return NULL;
		}
		result[i].name = options[i].name;
		result[i].value = value;
		if (outbox_option_is_file(files, i))
			*version = hash_combine64(*version, one);
	}
	return result;
}

uint64
outbox_options_files_version(const OutboxOption *options, int n, uint32 files)
{
	uint64 version = 0;

	for (int i = 0; i < n; i++)
		if (outbox_option_is_file(files, i))
		{
			uint64 one = outbox_secret_file_version(options[i].value);

			if (one == 0)
				return 0;
			version = hash_combine64(version, one);
		}
	return version;
}

void
outbox_options_wipe(OutboxOption *options, int n)
{
	for (int i = 0; i < n; i++)
	{
		char *value = unconstify(char *, options[i].value);

		explicit_bzero(value, strlen(value));
	}
}

/* Removes an entry, and returns its value; NULL: there is none. */
static const char *
take_option(OutboxOption *options, int *n, const char *name)
{
	for (int i = 0; i < *n; i++)
		if (strcmp(options[i].name, name) == 0)
		{
			const char *value = options[i].value;

			memmove(&options[i], &options[i + 1], sizeof(*options) * (--*n - i));
			return value;
		}
	return NULL;
}

OutboxShape
outbox_options_take_shape(OutboxOption *options, int *n, const char **problem,
						  const char **hint)
{
	OutboxShape shape = {.text = take_option(options, n, SHAPE)};
	const char *needs = take_option(options, n, SHAPE_NEEDS);

	*problem = shape.text ? outbox_shape_problem(shape.text, hint) : NULL;
	shape.needs_all = needs && strcmp(needs, "dead") == 0;
	if (needs && *problem == NULL &&
		(shape.text == NULL || (!shape.needs_all && strcmp(needs, "null") != 0)))
	{
		*hint =
			"Use null or dead, together with payload. null: what is missing is null. dead: the event becomes a dead letter.";
		*problem = SHAPE_NEEDS " is not valid";
	}
	return shape;
}

/* ------------------------------------------------------------ checking */

static void
check_object(Jsonb *jb, const char *what, const char *example)
{
	if (!JB_ROOT_IS_OBJECT(jb))
		ereport(ERROR,
				(OUTBOX_INVALID(what), errmsg("%s must be a JSON object", what),
				 errhint("Write it as %s.", example)));
	if (JB_ROOT_COUNT(jb) > OUTBOX_OPTIONS_MAX)
		ereport(ERROR,
				(OUTBOX_INVALID(what),
				 errmsg("%s has %d entries", what, (int) JB_ROOT_COUNT(jb)),
				 errhint("No sink knows so many names. Use at most %d.",
						 OUTBOX_OPTIONS_MAX)));
}

static bool
is_known(const char *name, const char *const *names)
{
	for (; names && *names; names++)
		if (strcmp(*names, name) == 0)
			return true;
	return false;
}

/* Text for a hint. */
static const char *
known_names(const OutboxTransport *transport, const char *const *names)
{
	StringInfoData text;

	initStringInfo(&text);
	if (names == NULL || *names == NULL)
		appendStringInfo(&text, "The sink %s has none. Leave it out.", transport->name);
	else
		appendStringInfo(&text, "The sink %s knows: %s", transport->name, *names++);
	for (; names && *names; names++)
		appendStringInfo(&text, ", %s", *names);
	if (text.data[text.len - 1] != '.')
		appendStringInfoChar(&text, '.');
	return text.data;
}

/* sink_properties(url): the properties that transport.h describes. */
OUTBOX_FUNCTION(outbox_sink_properties_1_0, 1)
{
	const char			  *problem;
	const OutboxTransport *webhook = outbox_sinks_in_session("https:", &problem);
	const OutboxTransport *t = webhook;
	const OutboxTransport *d;
	double				   seconds;
	OutboxRows			   row = {0};

	if (!PG_ARGISNULL(0))
		t = outbox_sinks_in_session(text_to_cstring(PG_GETARG_TEXT_PP(0)), &problem);
	d = t ? t : webhook;
	put_value(&row,
			  CStringGetTextDatum(d->default_format ? d->default_format :
													  webhook->default_format));
	put_value(&row,
			  Int32GetDatum(d->default_in_flight > 0 ? d->default_in_flight :
													   webhook->default_in_flight));
	seconds = (d->default_timeout > 0 ? d->default_timeout : webhook->default_timeout) /
		1000.0;
	put_value(&row,
			  DirectFunctionCall7(make_interval, Int32GetDatum(0), Int32GetDatum(0),
								  Int32GetDatum(0), Int32GetDatum(0), Int32GetDatum(0),
								  Int32GetDatum(0), Float8GetDatum(seconds)));
	put_value(&row, BoolGetDatum(t && t->attribute_prefix));
	PG_RETURN_DATUM(outbox_return_row(fcinfo, &row));
}

/* A value in credentials that is no string.  No error repeats anything of it. */
static void
check_file(const JsonbValue *v)
{
	char	   *name = file_name(v);
	const char *problem = name ? outbox_secret_file_name_problem(name, strlen(name)) :
								 "it is not an object with \"file\" and a name";

	if (problem)
		ereport(
			ERROR,
			(OUTBOX_INVALID("credentials"),
			 errmsg("a file in credentials cannot be used: %s", problem),
			 errhint(
				 "Name a file that is directly in outbox.secrets_directory, like '{\"password\": {\"file\": \"kafka.pw\"}}'.")));
	if (outbox_secrets_directory[0] == '\0')
		ereport(
			ERROR,
			(OUTBOX_INVALID("credentials"),
			 errmsg("credentials name a file, and outbox.secrets_directory is not set"),
			 errhint(
				 "Let an administrator set outbox.secrets_directory, or pass the value itself.")));
}

/*
 * credential_names(credentials jsonb): the names, sorted, or an error if it is not an
 * object of strings and names of files.  The error has none of the text, because a
 * password may stand at the wrong place.
 */
OUTBOX_FUNCTION(outbox_credential_names_1_0, 1)
{
	Jsonb		 *jb = PG_GETARG_JSONB_P(0);
	OutboxMembers m = outbox_members(jb);
	Datum		  names[OUTBOX_OPTIONS_MAX];
	int			  n = 0;

	check_object(jb, "credentials", "{\"username\": \"...\", \"password\": \"...\"}");
	while (outbox_members_next(&m))
	{
		names[n++] = PointerGetDatum(
			cstring_to_text_with_len(m.name.val.string.val, m.name.val.string.len));
		if (m.value.type == jbvBinary)
			check_file(&m.value);
		else if (m.value.type != jbvString || m.value.val.string.len == 0 ||
				 m.value.val.string.len > CREDENTIAL_MAX)
			ereport(
				ERROR,
				(OUTBOX_INVALID("credentials"),
				 errmsg("a value in credentials is not a string of 1 to %d bytes",
						CREDENTIAL_MAX),
				 errhint(
					 "credentials is a flat object of strings, like '{\"username\": \"...\", \"password\": \"...\"}'.")));
		else if (outbox_text_problem(m.value.val.string.val, m.value.val.string.len) &&
				 strstr(value_text(&m.value), PEM) == NULL)
			ereport(
				ERROR,
				(OUTBOX_INVALID("credentials"),
				 errmsg("a value in credentials has a control character"),
				 errhint(
					 "Remove line breaks and other control characters. Only PEM may have them.")));
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(names, n, TEXTOID, -1, false, TYPALIGN_INT));
}

static void
check_config(Jsonb *jb, const OutboxTransport *transport)
{
	OutboxMembers m = outbox_members(jb);

	while (outbox_members_next(&m))
	{
		char *name = value_text(&m.name);
		char *value = value_text(&m.value);

		if (!is_known(name, transport->config_names) && !is_known(name, shape_names))
			ereport(ERROR,
					(OUTBOX_INVALID("config"),
					 errmsg("unknown name \"%s\" in config", name),
					 errhint("%s", known_names(transport, transport->config_names))));
		if (strcmp(name, SHAPE) != 0 &&
			(value == NULL || strlen(value) > CONFIG_MAX ||
			 outbox_text_problem(value, strlen(value))))
			ereport(
				ERROR,
				(OUTBOX_INVALID("config"),
				 errmsg("invalid value of \"%s\" in config", name),
				 errhint(
					 "Use a string, a number, true or false, of at most %d bytes and without control characters.",
					 CONFIG_MAX)));
	}
}

/* Returns the problem with the host of an entry of config that is a URL by its name. */
static const char *
config_url_problem(const OutboxTarget *target, const char **hint)
{
	const char *problem = NULL;

	for (int i = 0; problem == NULL && i < target->nconfig; i++)
	{
		const char *name = target->config[i].name;
		size_t		len = strlen(name);

		if (len > 4 && strcmp(name + len - 4, "_url") == 0)
			problem = outbox_host_check_url(target->config[i].value, hint);
	}
	return problem;
}

static OutboxOption *
check_credentials(ArrayType *array, const OutboxTransport *transport, int *n)
{
	Datum		 *elems;
	bool		 *nulls;
	OutboxOption *options;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls, n);
	options = palloc0(sizeof(OutboxOption) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		options[i].name = nulls[i] ? "" : TextDatumGetCString(elems[i]);
		if (!is_known(options[i].name, transport->credential_names))
			ereport(ERROR,
					(OUTBOX_INVALID("credentials"), errmsg("unknown name in credentials"),
					 errhint("%s", known_names(transport, transport->credential_names))));
	}
	return options;
}

/* True if nothing says where credentials go that is not the same in both. */
static bool
same_target(const OutboxTarget *a, const OutboxTarget *b)
{
	bool same = strcmp(a->url, b->url) == 0 && a->nconfig == b->nconfig;

	for (int i = 0; same && i < a->nconfig; i++)
		same = strcmp(a->config[i].name, b->config[i].name) == 0 &&
			strcmp(a->config[i].value, b->config[i].value) == 0;
	return same;
}

/*
 * keeps_credentials(old_url text, old_config jsonb, url text, config jsonb): true if the
 * sink knows that the same servers get stored credentials with the new ones.  False if
 * this cannot be judged.
 */
OUTBOX_FUNCTION(outbox_keeps_credentials_1_0, 4)
{
	OutboxTarget targets[2] = {{.url = NULL}};
	const char	*problem;

	for (int i = 0; i < 2; i++)
	{
		OutboxTarget *t = &targets[i];

		if (PG_ARGISNULL(2 * i))
			PG_RETURN_BOOL(false);
		t->url = text_to_cstring(PG_GETARG_TEXT_PP(2 * i));
		if (!PG_ARGISNULL(2 * i + 1))
		{
			const char *hint;

			t->config = outbox_options_read(PG_GETARG_JSONB_P(2 * i + 1), &t->nconfig,
											NULL);
			(void) outbox_options_take_shape(t->config, &t->nconfig, &problem, &hint);
		}
		t->transport = outbox_sinks_in_session(t->url, &problem);
	}
	PG_RETURN_BOOL(same_target(&targets[0], &targets[1]) ||
				   (targets[0].transport &&
					targets[0].transport == targets[1].transport &&
					targets[0].transport->keeps_credentials &&
					targets[0].transport->keeps_credentials(&targets[0], &targets[1])));
}

/* Throws an error if requests cannot be sent to the URL. */
static void
check_url(char *url)
{
	const char *hint = NULL;
	const char *problem = outbox_sinks_check_url(url, &hint);

	if (problem == NULL && outbox_text_problem(url, strlen(url)) != NULL)
	{
		problem = "the URL contains a control character";
		hint = "Percent-encode it.";
	}

	/* The message does not repeat the URL, because it may contain a token. */
	if (problem)
		ereport(ERROR,
				(OUTBOX_INVALID("url"), errmsg("invalid url: %s", problem),
				 hint ? errhint("%s", hint) : 0));
}

/*
 * check_options(url text, shown text, filter jsonpath, headers jsonb, config jsonb,
 * credentials text[]): throws an error if there can be no such URL, filter or headers, or if
 * its sink does not take the others.  Each may be NULL.  'credentials' has the names.
 *
 * A URL that no library can judge is accepted without options: its worker names the
 * missing library.  So is a URL that cannot be opened.
 */
OUTBOX_FUNCTION(outbox_check_options_1_0, 6)
{
	char				  *url = NULL;
	Jsonb				  *config = PG_ARGISNULL(4) ? NULL : PG_GETARG_JSONB_P(4);
	OutboxTarget		   target = {.url = NULL};
	const char			  *problem = NULL;
	OutboxAdvice		   advice = {NULL};
	const OutboxTransport *transport;

	if (!PG_ARGISNULL(0))
		check_url(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	if (!PG_ARGISNULL(2))
		outbox_filter_check(PG_GETARG_JSONPATH_P(2));
	if (!PG_ARGISNULL(3))
		outbox_check_headers(PG_GETARG_JSONB_P(3), false);
	if (PG_ARGISNULL(1))
		PG_RETURN_VOID();
	url = text_to_cstring(PG_GETARG_TEXT_PP(1));
	target.url = url;
	if (config)
		check_object(config, "config", "{\"name\": \"value\"}");
	transport = outbox_sinks_in_session(url, &problem);
	if (transport == NULL)
	{
		if (config == NULL && PG_ARGISNULL(5))
			PG_RETURN_VOID();
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("config and credentials cannot be checked: %s", problem),
				 errhint("Install the library of the sink on this server first.")));
	}
	problem = NULL;
	if (config)
	{
		check_config(config, transport);
		target.config = outbox_options_read(config, &target.nconfig, NULL);
		(void) outbox_options_take_shape(target.config, &target.nconfig, &problem,
										 &advice.hint);
	}
	if (!PG_ARGISNULL(5))
		target.credentials = check_credentials(PG_GETARG_ARRAYTYPE_P(5), transport,
											   &target.ncredentials);
	target.transport = transport;
	if (problem)
		advice.field = "config";
	else if (transport->check && !outbox_is_sealed(OUTBOX_FIELD_URL, url))
		problem = transport->check(&target, &advice);
	if (problem == NULL && (problem = config_url_problem(&target, &advice.hint)) != NULL)
		advice.field = "config";
	if (problem)
		ereport(ERROR,
				(OUTBOX_INVALID(advice.field ? advice.field : "url"),
				 errmsg("the sink %s cannot have this endpoint: %s", transport->name,
						problem),
				 advice.hint ? errhint("%s", advice.hint) : 0));
	if (advice.notice)
		ereport(NOTICE, (errmsg("%s", advice.notice)));
	PG_RETURN_VOID();
}
