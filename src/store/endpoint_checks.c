/*
 * endpoint_checks.c
 *	  Owns the SQL-callable functions that create_endpoint() and its relatives are
 *	  built on: checks of settings, the end of the log as a position, and the figures
 *	  that workers publish of endpoints.
 *
 * Invalid settings are refused here, with a hint, so that no worker has to deal
 * with them.
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "commands/sequence.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/names.h"
#include "base/table_rows.h"
#include "base/version.h"
#include "emit/emit_topics.h"
#include "endpoint/endpoint_stats.h"
#include "format/signature.h"
#include "log/event_stamp.h"
#include "server/shmem.h"
#include "server/wakeup.h"
#include "server/worker_slot.h"
#include "store/endpoint_options.h"
#include "store/positions.h"
#include "transport/http/http.h"

OUTBOX_FUNCTION(outbox_check_topics_1_0, 1)
{
	ArrayType *array = PG_GETARG_ARRAYTYPE_P(0);
	Datum	  *elems;
	bool	  *nulls;
	int		   n;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls, &n);
	if (n == 0)
		ereport(
			ERROR,
			(OUTBOX_INVALID("topics"), errmsg("topics must not be empty"),
			 errhint(
				 "Name at least one pattern, like \"order.*\"; \"*\" stands for every topic.")));
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(OUTBOX_INVALID("topics"),
				 errmsg("topics must not have %d dimensions", ARR_NDIM(array)),
				 errhint(
					 "Write the patterns in one list, like '{order.*,invoice.paid}'.")));
	if (n > OUTBOX_MAX_TOPICS)
		ereport(ERROR,
				(OUTBOX_INVALID("topics"), errmsg("topics has %d patterns", n),
				 errhint("Use at most %d. A segment that is \"*\" stands for many.",
						 OUTBOX_MAX_TOPICS)));
	for (int i = 0; i < n; i++)
	{
		char	   *pattern = nulls[i] ? NULL : TextDatumGetCString(elems[i]);
		const char *problem = nulls[i] ? "it is NULL" :
										 outbox_pattern_problem(pattern, strlen(pattern));

		if (problem)
			ereport(
				ERROR,
				(OUTBOX_INVALID("topics"),
				 errmsg("invalid topic pattern \"%s\": %s", pattern ? pattern : "NULL",
						problem),
				 errhint(
					 "A pattern is a topic like \"order.created\" in which a segment may be \"*\", or \"*\" alone.")));
	}
	PG_RETURN_VOID();
}

/* The form of the secrets of a config.  One that is not valid is refused elsewhere. */
static OutboxSecretForm
secret_form(Jsonb *config)
{
	OutboxTarget  target = {0};
	OutboxProfile profile = outbox_profile_standard;
	const char	 *hint;

	if (config)
	{
		target.config = outbox_options_read(config, &target.nconfig, NULL);
		(void) outbox_http_profile(&target, &profile, &hint);
	}
	return outbox_profile_secret_form(&profile);
}

/*
 * new_secret(config jsonb, given text): the given secret, or (NULL) a new one.  The config
 * says which form it has.
 */
OUTBOX_FUNCTION(outbox_new_secret_1_0, 2)
{
	OutboxSecretForm form = secret_form(PG_ARGISNULL(0) ? NULL : PG_GETARG_JSONB_P(0));
	OutboxKey		 key;

	if (PG_ARGISNULL(1))
		PG_RETURN_TEXT_P(
			cstring_to_text(outbox_secret_generate(form == OUTBOX_SECRET_PRIVATE)));
	if (!outbox_secret_decode(text_to_cstring(PG_GETARG_TEXT_PP(1)), form, &key))
		ereport(
			ERROR,
			(OUTBOX_INVALID("secret"), errmsg("invalid secret"),
			 form == OUTBOX_SECRET_PRIVATE ?
				 errhint(
					 "A secret for ed25519 is \"whsk_\" followed by the base64 of a private key and its public key, 64 bytes. A new endpoint gets one if none is passed.") :
				 form == OUTBOX_SECRET_TEXT ?
				 errhint(
					 "A secret whose text is the key has %d to %d characters of printable ASCII, and does not begin with \"whsk_\". A new endpoint gets one if none is passed.",
					 OUTBOX_SECRET_MIN, OUTBOX_KEY_MAX) :
				 errhint(
					 "A secret is \"whsec_\" followed by the base64 of %d to %d random bytes. A new endpoint gets one if none is passed.",
					 OUTBOX_SECRET_MIN, OUTBOX_SECRET_MAX)));
	PG_RETURN_DATUM(PG_GETARG_DATUM(1));
}

/* topic_in(topic text, patterns text[]): true if one of the patterns matches. */
OUTBOX_FUNCTION(outbox_topic_in_1_0, 2)
{
	text *topic = PG_GETARG_TEXT_PP(0);

	PG_RETURN_BOOL(outbox_topic_in_array(VARDATA_ANY(topic), VARSIZE_ANY_EXHDR(topic),
										 PG_GETARG_ARRAYTYPE_P(1)));
}

/*
 * position_now(sequence oid, OUT snapshot pg_snapshot, OUT seq_low bigint, OUT
 * committed pg_snapshot): the end of the log, as an endpoint that is made in this
 * transaction has to see it.  'committed' is the same with this transaction in it.
 *
 * The transaction gets an xid first, so that the snapshot lists it as running.
 * Otherwise its events would look as if they had been read.
 */
OUTBOX_FUNCTION(outbox_position_now_1_0, 1)
{
	OutboxRows	row = {0};
	OutboxTick *tick;
	OutboxTick *then;

	if (PG_GETARG_OID(0) != outbox_log_tables()->seq)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("%u is not the OID of outbox.events_seq", PG_GETARG_OID(0)),
				 errhint("Pass 'outbox.events_seq'::regclass.")));
	(void) GetTopTransactionId();
	tick = outbox_tick_in_session(PG_GETARG_OID(0));
	then = outbox_tick_before_own_commit(tick);
	put_value(&row, outbox_snapshot_datum(tick));
	put_value(&row, Int64GetDatum(tick->seq_low));
	put_value(&row, outbox_snapshot_datum(then));
	outbox_tick_unref(tick);
	outbox_tick_unref(then);
	PG_RETURN_DATUM(outbox_return_row(fcinfo, &row));
}

/*
 * wake_workers(): the commit of this transaction wakes the workers, which then read
 * commands, and the endpoints in outbox.endpoint_changes.
 */
OUTBOX_FUNCTION(outbox_wake_workers_1_0, 0)
{
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);

	outbox_mark(OUTBOX_MARK_CHANGED);

	/*
	 * The change may remove the cause of a worker's failure, so the launcher is woken,
	 * too.  Without a slot, it knows of no extension here: COMMIT PREPARED of CREATE
	 * EXTENSION does not tell it.
	 */
	if (db == NULL)
		outbox_mark(OUTBOX_MARK_LAUNCHER);
	for (int w = 0; db != NULL && w < OUTBOX_MAX_WORKERS; w++)
		if (db->workers[w].pid == 0 && (w == 0 || db->workers[w].failures > 0))
			outbox_mark(OUTBOX_MARK_LAUNCHER);
	PG_RETURN_VOID();
}

/* 0: there was none. */
static void
put_time(OutboxRows *row, TimestampTz t)
{
	put_if(row, t != 0, TimestampTzGetDatum(t));
}

/*
 * endpoint_stats(endpoint_id int): the figures that the endpoint's worker published
 * last, or NULL if nothing was published since the server started.
 */
OUTBOX_FUNCTION(outbox_endpoint_stats_1_0, 1)
{
	OutboxRows	row = {0};
	OutboxStats s;
	bool		counted;

	if (!outbox_stats_fetch(MyDatabaseId, PG_GETARG_INT32(0), &s))
		PG_RETURN_NULL();
	counted = s.waiting.dead >= 0;
	put_value(&row, CStringGetTextDatum(outbox_endpoint_states[s.state]));
	put_time(&row, s.state_since);
	put_if(&row, s.reason[0], CStringGetTextDatum(s.reason));
	put_value(&row, Int64GetDatum(s.waiting.pending));
	put_value(&row,
			  BoolGetDatum(s.pending_exact &&
						   outbox_worker_counts(s.key.endpoint_id, s.pid)));
	put_value(&row, Int64GetDatum(s.waiting.processing));
	put_if(&row, counted, Int64GetDatum(s.waiting.retrying));
	put_if(&row, counted, Int64GetDatum(s.waiting.blocked));
	put_if(&row, counted, Int64GetDatum(s.waiting.dead));
	put_value(&row, Int64GetDatum(s.delivered));
	put_value(&row, Int64GetDatum(s.failed_attempts));
	put_time(&row, s.waiting.oldest_pending_at);
	put_time(&row, s.next_attempt_at);
	put_value(&row,
			  Float8GetDatum(outbox_endpoint_stats_rate(s.recent, s.recent_second,
														GetCurrentTimestamp())));
	put_if(&row, s.latency_p50_ms >= 0, Float8GetDatum(s.latency_p50_ms));
	put_if(&row, s.latency_p95_ms >= 0, Float8GetDatum(s.latency_p95_ms));
	put_if(&row, s.latency_p99_ms >= 0, Float8GetDatum(s.latency_p99_ms));
	put_time(&row, s.last_success_at);
	put_if(&row, s.last_error[0], CStringGetTextDatum(s.last_error));
	PG_RETURN_DATUM(outbox_return_row(fcinfo, &row));
}
