/*
 * batch_outcome.c
 *	  Owns the outcome of a batch for each of its members.
 *
 * A batch that failed as a whole is tried again as one group.  It is split into two
 * halves when each member has had OUTBOX_BATCH_TRIES attempts, or when the receiver
 * aborts it.  This is repeated until the event that makes it fail is alone.  A member
 * that the receiver names is retried by itself.  In a lane no event overtakes
 * another: a member behind a failed one goes back behind it, whatever the answer
 * said of that member.
 */
#include "base/outbox.h"

#include "endpoint/batch.h"
#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/status.h"
#include "format/batch_answer.h"

static OutboxDelivery *
member(const OutboxBatch *b, int i)
{
	return b->members[i].delivery;
}

/*
 * The lanes of a batch, each once.  While they are held they have no head and do
 * not advance.  They advance when all members have been processed.
 */
typedef struct Lanes
{
	int			 n;
	OutboxLane **lanes;
} Lanes;

static void
hold_lanes(OutboxBatch *b, Lanes *l)
{
	l->n = 0;
	l->lanes = MemoryContextAlloc(b->body.scratch, sizeof(OutboxLane *) * b->n);
	for (int i = 0; i < b->n; i++)
	{
		OutboxLane *lane = member(b, i)->lane;

		if (lane == NULL || lane->head == NULL)
			continue;
		lane->head = NULL;
		lane->failed_with = 0;
		l->lanes[l->n++] = lane;
	}
}

static void
release_lanes(OutboxEndpoint *ep, Lanes *l)
{
	for (int i = 0; i < l->n; i++)
		outbox_lane_advance(ep, l->lanes[i]);
}

void
outbox_batch_dead(OutboxBatch *b, const char *reason, const char *error)
{
	OutboxEndpoint *ep = b->endpoint;
	Lanes			lanes;

	outbox_batch_land(b);
	hold_lanes(b, &lanes);
	for (int i = 0; i < b->n; i++)
		outbox_outcome_give_up(ep, member(b, i), reason, error);
	release_lanes(ep, &lanes);
	MemoryContextDelete(b->cxt);
}

static int
compare_ids(const void *a, const void *b)
{
	return strcmp((*(OutboxMember *const *) a)->delivery->event->id_text,
				  (*(OutboxMember *const *) b)->delivery->event->id_text);
}

typedef struct Names
{
	OutboxBatch	  *batch;
	OutboxMember **by_id; /* sorted by id (NULL: no member was named yet) */
} Names;

static bool
named(void *arg, const char *id, size_t len)
{
	Names		*names = arg;
	OutboxBatch *b = names->batch;
	int			 low = 0;
	int			 high = b->n;

	if (names->by_id == NULL)
	{
		names->by_id = MemoryContextAlloc(b->body.scratch, sizeof(OutboxMember *) * b->n);
		for (int i = 0; i < b->n; i++)
			names->by_id[i] = &b->members[i];
		qsort(names->by_id, b->n, sizeof(OutboxMember *), compare_ids);
	}
	while (len == OUTBOX_ID_SIZE - 1 && low < high)
	{
		OutboxMember *m = names->by_id[(low + high) / 2];
		int			  c = pg_strncasecmp(id, m->delivery->event->id_text, len);

		if (c == 0)
		{
			m->judgement = OUTBOX_MEMBER_FAILED;
			return true;
		}
		if (c < 0)
			high = (low + high) / 2;
		else
			low = (low + high) / 2 + 1;
	}
	return false;
}

/* A member behind a failed one of its lane does not count as delivered. */
static void
hold_back(OutboxBatch *b)
{
	for (int i = 0; i < b->n; i++)
		if (member(b, i)->lane)
			member(b, i)->lane->failed_with = 0;
	for (int i = 0; i < b->n; i++)
	{
		OutboxLane *lane = member(b, i)->lane;

		if (lane == NULL)
			continue;
		if (lane->failed_with != 0)
			b->members[i].judgement = OUTBOX_MEMBER_HELD;
		else if (b->members[i].judgement == OUTBOX_MEMBER_FAILED)
			lane->failed_with = 1;
	}
}

void
outbox_batch_judge(OutboxBatch *b, const OutboxOutcome *o)
{
	Names names = {b, NULL};

	for (int i = 0; i < b->n; i++)
		b->members[i].judgement = OUTBOX_MEMBER_DELIVERED;
	b->whole_failed = o->result != OUTBOX_RESULT_DELIVERED;
	b->error = o->error;
	if (!b->whole_failed)
		switch (outbox_batch_answer(o->answer, o->answer_len, named, &names))
		{
			case OUTBOX_ANSWER_ALL:
				break;
			case OUTBOX_ANSWER_SOME:
				b->error = "the receiver named it in batchItemFailures";
				hold_back(b);
				break;
			case OUTBOX_ANSWER_MALFORMED:
				b->error =
					"the answer to the batch is no valid list of batchItemFailures";
				b->whole_failed = true;
				break;
		}
	if (b->whole_failed)
		for (int i = 0; i < b->n; i++)
			b->members[i].judgement = OUTBOX_MEMBER_FAILED;
}

const char *
outbox_batch_error(const OutboxBatch *b, int i)
{
	switch (b->members[i].judgement)
	{
		case OUTBOX_MEMBER_DELIVERED:
			break;
		case OUTBOX_MEMBER_FAILED:
			return b->error;
		case OUTBOX_MEMBER_HELD:
			return b->endpoint->config.ordering == OUTBOX_ORDER_STRICT ?
				"an earlier event failed in the same batch" :
				"an earlier event of its key failed in the same batch";
	}
	return NULL;
}

/*
 * The delivery goes back into its lane, behind the delivery that failed.  'was_retry'
 * makes park_lane() write its row, even if that says 'blocked' already: its attempts have
 * changed.
 */
static void
return_behind_failed(OutboxEndpoint *ep, OutboxDelivery *d)
{
	d->group = 0;
	d->was_retry = true;
	outbox_lane_return(ep, d->lane, d);
}

static void
give_up_member(OutboxEndpoint *ep, OutboxDelivery *d, const char *reason,
			   const char *error)
{
	d->group = d->seq; /* so that outbox.retry() sends it alone */
	outbox_outcome_log_dead(ep, d, reason, error);
	outbox_outcome_give_up(ep, d, reason, error);
	if (d->lane && outbox_outcome_blocks(ep, reason))
	{
		d->lane->blockers++;
		outbox_lane_park_later(ep, d->lane);
	}
}

/*
 * True if one of the events may make the request fail.  None does where the request never
 * reached the receiver, or where the receiver only has too much to do.
 */
static bool
may_be_poisoned(const OutboxBatch *b, const OutboxOutcome *o)
{
	for (int i = 0; i < b->n; i++)
		if (o->result != OUTBOX_RESULT_ABORT &&
			member(b, i)->attempts < OUTBOX_BATCH_TRIES)
			return false;
	return !o->no_event_at_fault && o->result != OUTBOX_RESULT_DISABLE;
}

/* The request failed: its members are retried together, or in two halves. */
static void
whole_failed(OutboxBatch *b, const OutboxOutcome *o, TimestampTz now)
{
	OutboxEndpoint *ep = b->endpoint;
	bool			probe = member(b, 0)->probe;
	int64			group[2];
	int64			wait[2];
	int				second = b->n;

	for (int i = 0; i < b->n; i++)
		outbox_outcome_failed(ep, member(b, i), o, b->error);
	outbox_outcome_request_failed(ep, member(b, 0), b->n == 1, o, now);
	if (b->n == 1 && o->result != OUTBOX_RESULT_DISABLE)
	{
		const char *reason = o->result == OUTBOX_RESULT_ABORT ?
			"aborted by receiver" :
			outbox_outcome_exhausted(ep, member(b, 0), now);

		if (reason)
		{
			give_up_member(ep, member(b, 0), reason, b->error);
			return;
		}
	}
	if (b->n > 1 && may_be_poisoned(b, o))
		second = (b->n + 1) / 2;
	group[0] = member(b, 0)->seq;
	wait[0] = outbox_outcome_wait(ep, member(b, 0), o);
	group[1] = second < b->n ? member(b, second)->seq : 0;
	wait[1] = second < b->n ? outbox_outcome_wait(ep, member(b, second), o) : 0;

	/*
	 * The first member of a lane decides the lane's group, and members of the other
	 * half go back behind it.  The second loop goes from the end, so that they come
	 * back in their order.
	 */
	for (int i = 0; i < b->n; i++)
	{
		OutboxLane *lane = member(b, i)->lane;

		if (lane && lane->failed_with == 0)
			lane->failed_with = group[i >= second];
	}
	for (int i = b->n - 1; i >= 0; i--)
	{
		OutboxDelivery *d = member(b, i);
		int				half = i >= second;

		if (d->lane && d->lane->failed_with != group[half])
		{
			return_behind_failed(ep, d);
			continue;
		}
		if (!probe)
			d->group = group[half];
		outbox_outcome_retry(ep, d, now + wait[half]);
	}
}

/* The receiver named this member: it failed by itself. */
static void
one_failed(OutboxBatch *b, OutboxDelivery *d, const OutboxOutcome *o, TimestampTz now)
{
	OutboxEndpoint *ep = b->endpoint;
	const char	   *reason;

	d->group = 0;
	outbox_outcome_failed(ep, d, o, b->error);
	reason = outbox_outcome_exhausted(ep, d, now);
	if (reason)
		give_up_member(ep, d, reason, b->error);
	else
		outbox_outcome_retry(ep, d, now + outbox_outcome_wait(ep, d, o));
}

static void
some_delivered(OutboxBatch *b, const OutboxOutcome *o, TimestampTz now)
{
	OutboxEndpoint *ep = b->endpoint;
	int				ndelivered = 0;

	for (int i = b->n - 1; i >= 0; i--)
		if (b->members[i].judgement == OUTBOX_MEMBER_HELD)
			return_behind_failed(ep, member(b, i));
	for (int i = 0; i < b->n; i++)
		if (b->members[i].judgement == OUTBOX_MEMBER_DELIVERED)
			ndelivered++;
	if (ndelivered == 0)
		outbox_outcome_request_failed(ep, member(b, 0), false, o, now);
	else if (outbox_outcome_is_present(ep, member(b, 0)))
		outbox_status_success(ep, now);
	for (int i = 0; i < b->n; i++)
	{
		if (b->members[i].judgement == OUTBOX_MEMBER_FAILED)
			one_failed(b, member(b, i), o, now);
		else if (b->members[i].judgement == OUTBOX_MEMBER_DELIVERED)
			outbox_outcome_delivered(ep, member(b, i), now);
	}
}

void
outbox_batch_done(OutboxBatch *b, const OutboxOutcome *o, TimestampTz now)
{
	OutboxEndpoint *ep = b->endpoint;
	Lanes			lanes;

	ep->tally->last_active_at = now;
	outbox_batch_land(b);
	hold_lanes(b, &lanes);
	if (b->whole_failed)
		whole_failed(b, o, now);
	else
		some_delivered(b, o, now);
	release_lanes(ep, &lanes);
	MemoryContextDelete(b->cxt);
}
