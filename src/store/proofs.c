/*
 * proofs.c
 *	  Owns how it is stored that the receiver of an endpoint has proved that it wants
 *	  events, and how often it was asked.
 */
#include "base/outbox.h"

#include "base/query.h"
#include "store/proofs.h"

bool
outbox_proof_waits(const OutboxEndpoint *ep)
{
	return ep->proof && (ep->proof->found || ep->proof->unstored > 0);
}

bool
outbox_proof_write(OutboxEndpoint *ep)
{
	const OutboxProof *p = ep->proof;

	return outbox_query(
			   "UPDATE outbox.endpoint_settings s SET challenges = s.challenges + $3,"
			   " verified_at = CASE WHEN $4 THEN pg_catalog.clock_timestamp() END,"
			   " state_since = CASE WHEN $4 AND s.state = 'active'"
			   " THEN pg_catalog.clock_timestamp() ELSE s.state_since END,"
			   " rate_limit = CASE WHEN $4 AND $5 > 0"
			   " THEN LEAST(s.rate_limit, $5::pg_catalog.float4) ELSE s.rate_limit END"
			   " WHERE s.endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings"
			   " WHERE endpoint_id = $1 AND version = $2 AND verified_at IS NULL"
			   " FOR UPDATE SKIP LOCKED)",
			   arg_int4(ep->id), arg_int8(p->version), arg_int4(p->unstored),
			   arg_bool(p->found), arg_datum(FLOAT8OID, Float8GetDatum(p->rate))) > 0;
}

void
outbox_proof_written(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxProof		*p = ep->proof;
	OutboxPaceLimits limits = ep->pace.limits;

	p->stored += p->unstored;
	p->unstored = 0;
	p->written = false;
	if (!p->found)
		return;
	ep->proof->found = false;
	p->challenge = OUTBOX_CHALLENGE_NONE;
	if (p->rate > 0 && (limits.rate_limit == 0 || p->rate < limits.rate_limit))
		limits.rate_limit = p->rate;
	outbox_pace_set_limits(&ep->pace, &limits);
	ep->status.state_since = Max(ep->status.state_since, now);
	ep->place.dirty = true;
}
