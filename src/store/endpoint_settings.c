/*
 * endpoint_settings.c
 *	  Owns how the settings of endpoints come from the tables into memory.
 *
 * With them comes the endpoint's place in the log, as one query for all costs half as
 * much as a query for each.
 */
#include "base/outbox.h"

#include "utils/jsonb.h"

#include "base/compat.h"
#include "base/json_members.h"
#include "base/query.h"
#include "base/settings.h"
#include "endpoint/packed_settings.h"
#include "log/step.h"
#include "store/endpoint_options.h"
#include "store/endpoint_settings.h"
#include "store/positions.h"
#include "store/seal.h"
#include "transport/http/http.h"
#include "transport/sinks.h"

/* Rows that are in memory at a time. */
#define ROWS_AT_ONCE 1000

/* It has keys only while settings are read. */
static OutboxKeyring keyring;

static char *
jsonb_string(const JsonbValue *v)
{
	return pnstrdup(v->val.string.val, v->val.string.len);
}

int
outbox_endpoint_headers(Jsonb *headers, char *hidden, char ***names, char ***values)
{
	OutboxMembers m = outbox_members(headers);
	int			  n = 0;

	*names = palloc(sizeof(char *) * Max(JB_ROOT_COUNT(headers), 1));
	*values = palloc(sizeof(char *) * Max(JB_ROOT_COUNT(headers), 1));
	while (outbox_members_next(&m))
		if (m.value.type == jbvString)
		{
			(*names)[n] = jsonb_string(&m.name);
			(*values)[n++] = hidden ? hidden : jsonb_string(&m.value);
		}
	return n;
}

OutboxFormat
outbox_endpoint_format(const char *name)
{
	if (strcmp(name, "raw") == 0)
		return OUTBOX_FORMAT_RAW;
	if (strcmp(name, "cloudevents") == 0)
		return OUTBOX_FORMAT_CLOUDEVENTS;
	if (strcmp(name, "cloudevents-binary") == 0)
		return OUTBOX_FORMAT_CLOUDEVENTS_BINARY;
	return OUTBOX_FORMAT_STANDARD;
}

static OutboxOrdering
read_ordering(const char *name)
{
	if (strcmp(name, "none") == 0)
		return OUTBOX_ORDER_NONE;
	if (strcmp(name, "strict") == 0)
		return OUTBOX_ORDER_STRICT;
	return OUTBOX_ORDER_KEY;
}

static int
read_log_attempts(const char *name)
{
	if (name == NULL)
		return -1;
	return strcmp(name, "none") == 0  ? OUTBOX_LOG_ATTEMPTS_NONE :
		strcmp(name, "failures") == 0 ? OUTBOX_LOG_ATTEMPTS_FAILURES :
		strcmp(name, "answers") == 0  ? OUTBOX_LOG_ATTEMPTS_ANSWERS :
										OUTBOX_LOG_ATTEMPTS_ALL;
}

#define USEC(interval) \
	"(pg_catalog.date_part('epoch', " interval ") * 1000000)::pg_catalog.int8"

/* Columns that are not in OutboxEndpointRow as they are. */
typedef struct Raw
{
	ArrayType	 *topics;
	char		 *format;
	Jsonb		 *headers;
	char		 *ordering;
	char		 *on_exhausted;
	char		 *state;
	char		 *challenge;
	char		 *start_snapshot;
	int64		  start_seq_low;
	JsonPath	 *filter;
	char		 *log_attempts;
	TransactionId settings_xmin;
	TransactionId secrets_xmin;
} Raw;

/*
 * The columns that are read of an endpoint, into 's' and 'raw'.  The columns of its position
 * follow.  The first ones tell whether the others are read.
 */
/* clang-format off */
#define FIRST_COLUMNS(column) \
	column("s.endpoint_id", into_int4(&s.id)) \
	column("s.xmin", into_xid(&raw.settings_xmin)) \
	column("k.xmin", into_xid(&raw.secrets_xmin))
#define COLUMNS(column) \
	FIRST_COLUMNS(column) \
	column("s.name", into_text(&s.name)) \
	column("s.url", into_text(&s.url)) \
	column("s.topics", into_varlena(TEXTARRAYOID, &raw.topics)) \
	column("s.format", into_text(&raw.format)) \
	column("s.headers", into_varlena(JSONBOID, &raw.headers)) \
	column("s.ordering", into_text(&raw.ordering)) \
	column("s.on_exhausted", into_text(&raw.on_exhausted)) \
	column("s.max_in_flight", into_int4(&s.pace.max_in_flight)) \
	column("s.rate_limit::pg_catalog.float8", into_float8(&s.pace.rate_limit)) \
	column(USEC("s.timeout"), into_int8(&s.timeout)) \
	column(USEC("s.connect_timeout"), into_int8(&s.connect_timeout)) \
	column("s.max_attempts", into_int4(&s.max_attempts)) \
	column(USEC("s.max_age"), into_int8(&s.max_age)) \
	column(USEC("s.backoff_base"), into_int8(&s.pace.backoff_base)) \
	column(USEC("s.backoff_max"), into_int8(&s.pace.backoff_max)) \
	column("s.state", into_text(&raw.state)) \
	column("s.state_since", into_time(&s.state_since)) \
	column("s.reason", into_text(&s.reason)) \
	column("CASE WHEN s.verified_at IS NULL THEN s.challenge END", \
		 into_text(&raw.challenge)) \
	column("s.challenges", into_int4(&s.challenges)) \
	column("s.version", into_int8(&s.version)) \
	column("s.generation", into_int8(&s.generation)) \
	column("s.start_snapshot::pg_catalog.text", into_text(&raw.start_snapshot)) \
	column("s.start_seq_low", into_int8(&raw.start_seq_low)) \
	column("k.secret", into_text(&s.secret)) \
	column("k.previous", into_text(&s.previous)) \
	column("COALESCE(k.previous_until, 'infinity')", into_time(&s.previous_until)) \
	column("s.filter", into_varlena(JSONPATHOID, &raw.filter)) \
	column("s.batch_size", into_int4(&s.batch_size)) \
	column(USEC("s.batch_wait"), into_int8(&s.batch_wait)) \
	column("s.tenant", into_text(&s.tenant)) \
	column(USEC("s.disable_after"), into_int8(&s.disable_after)) \
	column("s.config", into_varlena(JSONBOID, &s.config)) \
	column("s.credentials IS NOT NULL", into_bool(&s.has_credentials)) \
	column("CASE WHEN k.credentials IS NOT NULL" \
		 " THEN outbox.stored_credentials(s.endpoint_id) END", \
		 into_varlena(JSONBOID, &s.credentials)) \
	column("COALESCE(l.max_in_flight, a.max_in_flight)", into_int4(&s.tenant_in_flight)) \
	column("COALESCE(l.rate_limit, a.rate_limit)::pg_catalog.float8", \
		 into_float8(&s.tenant_rate)) \
	column("COALESCE(l.max_kept, a.max_kept)", into_int8(&s.tenant_kept.rows)) \
	column("COALESCE(l.max_kept_bytes, a.max_kept_bytes)", \
		 into_int8(&s.tenant_kept.bytes)) \
	column(USEC("COALESCE(l.max_kept_age, a.max_kept_age)"), \
		 into_int8(&s.tenant_kept.age)) \
	column("s.log_attempts", into_text(&raw.log_attempts)) \
	column("(SELECT pg_catalog.max(v.version) FROM outbox.subscriptions v" \
		 " WHERE v.endpoint_id = s.endpoint_id)", into_int8(&s.subscription))
/* clang-format on */

#define SQL(sql, place) sql ", "
#define PLACE(sql, place) place,

uint64
outbox_endpoint_row_version(TransactionId settings, TransactionId secrets)
{
	return (uint64) settings << 32 | secrets;
}

/* Returns true if the time of a previous secret is over. */
static bool
read_row(OutboxColumns row, OutboxApplyEndpointRow apply, void *arg)
{
	OutboxEndpointRow s = {0};
	Raw				  raw;
	bool			  expired;

	outbox_read_into(row, (OutboxInto[]){FIRST_COLUMNS(PLACE){0}});
	s.row_version = outbox_endpoint_row_version(raw.settings_xmin, raw.secrets_xmin);
	outbox_step_blame(s.id);
	if (outbox_step_held(OUTBOX_STEP_RELOAD, s.id))
	{
		/* Its row could not be read before: read no more of it. */
		apply(arg, &s);
		return false;
	}
	row.first = outbox_read_into(row, (OutboxInto[]){COLUMNS(PLACE){0}});
	s.patterns = outbox_text_array(raw.topics, &s.npatterns);
	s.format = outbox_endpoint_format(raw.format);
	if (raw.headers)
		s.nheaders = outbox_endpoint_headers(raw.headers, NULL, &s.header_names,
											 &s.header_values);
	s.ordering = read_ordering(raw.ordering);
	s.block_on_dead = strcmp(raw.on_exhausted, "block") == 0;
	s.paused = strcmp(raw.state, "paused") == 0;
	s.disabled = strcmp(raw.state, "disabled") == 0;
	s.challenge = raw.challenge == NULL		  ? OUTBOX_CHALLENGE_NONE :
		strcmp(raw.challenge, "options") == 0 ? OUTBOX_CHALLENGE_OPTIONS :
												OUTBOX_CHALLENGE_ECHO;
	s.start = outbox_tick_make(0, s.state_since, raw.start_seq_low, raw.start_seq_low,
							   raw.start_snapshot);
	expired = s.previous_until <= GetCurrentTimestamp();
	if (expired)
		s.previous = NULL;
	if (s.previous == NULL)
		s.previous_until = DT_NOEND;
	s.keys_version = outbox_keyring_version(&keyring);
	if (raw.filter)
		s.filter = outbox_filter_usable(raw.filter);
	s.log_attempts = read_log_attempts(raw.log_attempts);
	s.position = row;
	SPI_connect();
	apply(arg, &s);
	SPI_finish();
	outbox_tick_unref(s.start);
	return expired;
}

/*
 * 'ids' has the endpoints that are read.  NULL: all are.  Returns true if the time of a
 * previous secret is over.
 */
static bool
read_settings(ArrayType *ids, OutboxApplyEndpointRow apply, void *arg)
{
	Datum		  args[1] = {PointerGetDatum(ids)};
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext, "outbox endpoint row",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = CurrentMemoryContext;
	Portal		  portal;
	SPITupleTable *table;
	uint64		   n;
	bool		   expired = false;

	/* The worker's plans are generic: one for all endpoints would read all for one. */
	portal = SPI_cursor_open_with_args(
		NULL,
		psprintf(
			"SELECT " COLUMNS(
				SQL) "p.*"
					 " FROM outbox.endpoint_settings s LEFT JOIN outbox.endpoint_secrets k"
					 " ON k.endpoint_id = s.endpoint_id AND k.part = 0"
					 " LEFT JOIN outbox.tenant_limits_here l ON l.tenant = s.tenant"
					 " LEFT JOIN outbox.tenant_limits_here a ON a.tenant = ''"
					 " LEFT JOIN LATERAL " OUTBOX_POSITION_OF(
						 "s.endpoint_id") " p ON true"
										  " WHERE %s ORDER BY s.endpoint_id",
			ids ? "s.endpoint_id = ANY ($1)" : "$1 IS NULL"),
		1, (Oid[]){INT4ARRAYOID}, args, ids ? " " : "n", false, 0);

	/*
	 * apply() runs queries in a connection of its own.  So their results are freed for
	 * each endpoint, and SPI_tuptable is that of the cursor again.
	 */
	do
	{
		SPI_cursor_fetch(portal, true, ROWS_AT_ONCE);
		table = SPI_tuptable;
		n = SPI_processed;
		for (uint64 i = 0; i < n; i++)
		{
			MemoryContextSwitchTo(cxt);
			expired = read_row(fetch_row(i), apply, arg) || expired;
			MemoryContextSwitchTo(old);
			MemoryContextReset(cxt);
		}
		SPI_freetuptable(table);
	} while (n == ROWS_AT_ONCE);
	SPI_cursor_close(portal);
	MemoryContextDelete(cxt);
	return expired;
}

/*
 * The key file is read once for all endpoints, and its keys are wiped at the end.
 */
bool
outbox_endpoint_settings_read(ArrayType *ids, OutboxApplyEndpointRow apply, void *arg)
{
	static char	  told[sizeof(keyring.problem)];
	volatile bool expired = false;

	outbox_keyring_load(&keyring);
	if (strcmp(keyring.problem, told) != 0 && keyring.problem[0])
		ereport(
			LOG,
			(errmsg("outbox.secret_key_file %s", keyring.problem),
			 errhint(
				 "Endpoints with sealed secrets are held. Correct the file, then run SELECT pg_reload_conf().")));
	strlcpy(told, keyring.problem, sizeof(told));
	PG_TRY();
	{
		expired = read_settings(ids, apply, arg);
	}
	PG_FINALLY();
	{
		outbox_keyring_wipe(&keyring);
	}
	PG_END_TRY();
	return expired;
}

static char **
copy_strings(char **from, int n)
{
	char **to = palloc(sizeof(char *) * Max(n, 1));

	for (int i = 0; i < n; i++)
		to[i] = pstrdup(from[i]);
	return to;
}

/*
 * Returns the value in clear text, palloc'd.  If it cannot be opened, returns it as
 * it is stored, and notes why in ep->status.held_for.
 */
static char *
open_value(OutboxEndpoint *ep, const char *field, const char *value)
{
	char  problem[OUTBOX_SEAL_PROBLEM];
	char *clear = outbox_unseal(&keyring, ep->id, field, value, problem);

	if (clear)
		return clear;
	ep->status.held_for = pstrdup(problem);
	return pstrdup(value);
}

static void
open_headers(OutboxEndpoint *ep)
{
	for (int i = 0; i < ep->config.request.nheaders; i++)
	{
		char *field = psprintf(OUTBOX_FIELD_HEADER "%s",
							   ep->config.request.header_names[i]);

		ep->config.request.header_values[i] =
			open_value(ep, field, ep->config.request.header_values[i]);
		pfree(field);
	}
}

/* A secret that cannot be decoded counts as missing. */
static void
open_secrets(OutboxEndpoint *ep, const OutboxEndpointRow *s)
{
	char *secret = s->secret ? open_value(ep, OUTBOX_FIELD_SECRET, s->secret) : NULL;
	char *previous = s->previous ? open_value(ep, OUTBOX_FIELD_PREVIOUS, s->previous) :
								   NULL;
	OutboxSecretForm form = outbox_profile_secret_form(ep->config.request.profile);

	ep->config.request.nkeys = 0;
	ep->config.request.keys = palloc0(sizeof(OutboxKey) * 2);
	if (secret && outbox_secret_decode(secret, form, &ep->config.request.keys[0]))
	{
		ep->config.request.nkeys = 1;
		if (previous && outbox_secret_decode(previous, form, &ep->config.request.keys[1]))
			ep->config.request.nkeys = 2;
	}
	if (ep->config.request.nkeys == 0 && ep->status.held_for == NULL)
		ep->status.held_for = "secret missing";
	if (secret)
		explicit_bzero(secret, strlen(secret));
	if (previous)
		explicit_bzero(previous, strlen(previous));
}

static void
read_shape(OutboxEndpoint *ep)
{
	OutboxTarget *target = &ep->config.target;
	const char	 *hint;
	const char	 *problem;

	ep->config.request.shape = outbox_options_take_shape(target->config, &target->nconfig,
														 &problem, &hint);
	if (problem && ep->status.held_for == NULL)
		ep->status.held_for = problem;
}

/* Not a template, which is filled in the database's encoding. */
static void
convert_config(OutboxTarget *target)
{
	for (int i = 0; i < target->nconfig; i++)
		target->config[i].value = outbox_options_sent_text(target->config[i].value);
}

/* Reads from the config of a webhook how its requests are made. */
static void
read_profile(OutboxEndpoint *ep)
{
	OutboxTarget  *target = &ep->config.target;
	OutboxProfile *profile;
	const char	  *hint;
	const char	  *problem;

	ep->config.request.profile = &outbox_profile_standard;
	if (target->nconfig == 0 || target->transport != &outbox_http_transport)
		return;
	profile = palloc(sizeof(*profile));
	problem = outbox_http_profile(target, profile, &hint);
	if (problem == NULL)
		ep->config.request.profile = profile;
	else if (ep->status.held_for == NULL)
		ep->status.held_for = problem;
}

/* Credentials that are to be overwritten when their memory is freed. */
typedef struct Wiped
{
	MemoryContextCallback callback;
	OutboxOption		 *options;
	int					  n;
} Wiped;

static void
wipe(void *arg)
{
	const Wiped *w = arg;

	outbox_options_wipe(w->options, w->n);
}

/* Reads them into the current memory context. */
static void
open_credentials(OutboxEndpoint *ep, const OutboxEndpointRow *s)
{
	OutboxTarget *target = &ep->config.target;
	Wiped		 *w;

	target->credentials = outbox_options_read(s->credentials, &target->ncredentials,
											  &ep->config.credential_files);
	if (s->has_credentials && target->ncredentials == 0)
		ep->status.held_for = "credentials missing";
	if (target->ncredentials == 0)
		return;
	w = palloc0(sizeof(*w));
	w->options = target->credentials;
	w->n = target->ncredentials;
	w->callback.func = wipe;
	w->callback.arg = w;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &w->callback);
	for (int i = 0; i < target->ncredentials; i++)
	{
		OutboxOption *o = &target->credentials[i];
		char		 *field;
		char		 *stored = unconstify(char *, o->value);

		if (outbox_option_is_file(ep->config.credential_files, i))
			continue; /* links.c reads it */
		field = psprintf(OUTBOX_FIELD_CREDENTIAL "%s", o->name);
		o->value = open_value(ep, field, stored);
		explicit_bzero(stored, strlen(stored));
		pfree(field);
	}
}

static void
find_sink(OutboxEndpoint *ep)
{
	const char			  *problem;
	const OutboxTransport *transport = outbox_sinks_find(ep->config.target.url, &problem);

	ep->config.target.transport = transport;
	if (transport == NULL && ep->status.held_for == NULL)
		ep->status.held_for = problem;
}

/*
 * The transaction may still be rolled back, and subscribers.c uses the former
 * patterns until outbox_subscribers_add().  So the former settings stay, and
 * outbox_publish() frees them.  Requests in flight have copies of all that they
 * need.
 */
static void
assign(OutboxEndpoint *ep, const OutboxEndpointRow *s)
{
	MemoryContext cxt = AllocSetContextCreate(CurTransactionContext,
											  "outbox endpoint settings",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	const char	 *former = ep->config.target.url;
	OutboxKey	 *keys;

	ep->config.name = pstrdup(s->name);
	ep->config.npatterns = s->npatterns;
	ep->config.patterns = copy_strings(s->patterns, s->npatterns);
	ep->config.row_version = s->row_version;
	ep->config.filter = NULL;
	if (s->filter)
	{
		ep->config.filter = palloc(VARSIZE(s->filter));
		memcpy(ep->config.filter, s->filter, VARSIZE(s->filter));
	}
	ep->status.held_for = NULL;
	ep->config.keys_version = s->keys_version;
	ep->config.target.url = outbox_options_sent_text(
		open_value(ep, OUTBOX_FIELD_URL, s->url));
	if (former && strcmp(former, ep->config.target.url) != 0)
		ep->config.url_version++;
	find_sink(ep);
	ep->config.target.endpoint = ep->id;
	ep->config.target.connect_timeout = (int) Min(s->connect_timeout / 1000,
												  PG_INT32_MAX);
	ep->config.target.timeout = (int) Min(s->timeout / 1000, PG_INT32_MAX);
	ep->config.target.whole_answer = s->batch_size > 1 ? OUTBOX_ANSWER_MAX / 1024 : 0;
	ep->config.request.format = s->format;
	ep->config.request.nheaders = s->nheaders;
	ep->config.request.header_names = copy_strings(s->header_names, s->nheaders);
	ep->config.request.header_values = copy_strings(s->header_values, s->nheaders);
	open_headers(ep);
	ep->config.target.config = outbox_options_read(s->config, &ep->config.target.nconfig,
												   NULL);
	read_shape(ep);
	convert_config(&ep->config.target);
	read_profile(ep);
	open_secrets(ep, s);
	open_credentials(ep, s);
	ep->config.previous_until = s->previous_until;
	ep->config.ordering = s->ordering;
	ep->config.block_on_dead = s->block_on_dead;
	outbox_pace_set_limits(&ep->pace, &s->pace);
	ep->config.max_attempts = s->max_attempts;
	ep->config.max_age = s->max_age;
	ep->config.batch_size = s->batch_size;
	ep->config.batch_wait = s->batch_wait;
	ep->config.disable_after = s->disable_after;
	ep->config.log_attempts = s->log_attempts;
	if (ep->status.disabled && !s->disabled)
		outbox_pace_resume(&ep->pace);
	ep->status.paused = s->paused;

	/* The table may not say yet that the receiver disabled the endpoint as it is there. */
	if (ep->config.version != s->version || s->paused)
		ep->status.state_dirty = false;
	if (!ep->status.state_dirty)
	{
		ep->status.disabled = s->disabled;
		ep->status.state_since = Max(ep->status.state_since, s->state_since);
		ep->status.reason = s->reason ? s->reason : "";
	}
	ep->config.version = s->version;
	keys = ep->config.request.keys;
	outbox_settings_pack(&ep->config, &ep->status);
	MemoryContextSwitchTo(old);
	explicit_bzero(keys, sizeof(OutboxKey) * 2);
	MemoryContextDelete(cxt);
}

/*
 * The answer for another version says nothing about this one.  A stored number that is
 * lower than before means that the receiver is to be asked anew.
 */
static void
take_proof(OutboxEndpoint *ep, const OutboxEndpointRow *s)
{
	OutboxProof *p = ep->proof;

	if (p == NULL && s->challenge == OUTBOX_CHALLENGE_NONE)
		return;
	if (p == NULL)
		p = ep->proof = MemoryContextAllocZero(TopMemoryContext, sizeof(*p));
	if (p->challenge == OUTBOX_CHALLENGE_NONE || p->version != s->version)
	{
		p->unstored = 0;
		p->found = false;
		strlcpy(p->reason, "its receiver is asked whether it wants events",
				sizeof(p->reason));
	}
	if (p->version != s->version || s->challenges < p->stored)
		p->again_at = 0;
	ep->proof->version = s->version;
	p->stored = s->challenges;
	p->challenge = s->challenge;
}

/*
 * After an error the endpoint has its former settings, and the memory of the new
 * ones is freed with the transaction.
 */
void
outbox_endpoint_settings_assign(OutboxEndpoint *ep, const OutboxEndpointRow *s)
{
	const OutboxEndpointConfig config = ep->config;
	const OutboxEndpointStatus status = ep->status;
	const OutboxPace		   pace = ep->pace;

	PG_TRY();
	{
		assign(ep, s);
	}
	PG_CATCH();
	{
		ep->config = config;
		ep->status = status;
		ep->pace = pace;
		PG_RE_THROW();
	}
	PG_END_TRY();
	take_proof(ep, s);
}
