/*
 * command_pass.c
 *	  Owns which commands of operators are next.
 *
 * The table is gone through endpoint by endpoint, a batch at a time.  A batch begins
 * behind the last command of the one before, because a snapshot may keep VACUUM from
 * removing the rows before it.  Where an endpoint has to wait, all its commands are left
 * alone to the end of the pass, so that they keep their order.  The time that commands take
 * is a debt of their endpoint (flow.c).  When it has paid, a pass goes on with it alone.
 */
#include "base/outbox.h"

#include "log/step.h"
#include "worker/command_pass.h"
#include "worker/loop.h"
#include "worker/roster.h"
#include "worker/slots.h"

/*
 * A pass with all endpoints begins after so many times the time that the first read of the
 * one before took.  While a snapshot is held, that read passes over the rows of all commands
 * that were carried out.
 */
#define REST_FACTOR 10

/* An endpoint whose commands wait. */
typedef struct Left
{
	int32 endpoint_id;
	int64 passed; /* When it has paid, they go on behind this one (0: with the first). */
} Left;

/* They wait for the next pass with all endpoints, or go on now and then begin once more. */
#define WITH_ALL (-1)
#define GOES_ON (-2)

static struct
{
	bool			   active;
	OutboxCommandPlace place;	  /* without 'upto' */
	int32			   last;	  /* endpoints with higher ids are not in the pass */
	TimestampTz		   begun;	  /* the last one with all endpoints */
	TimestampTz		   rested_at; /* when the next one with all endpoints may begin */
	List			  *left;	  /* of Left, by endpoint_id */
	TimestampTz		   paid_at;	  /* when one of these may have paid */
	int32			   turn;	  /* the endpoint that went on last */
} pass = {.paid_at = DT_NOEND};

static bool
owes(OutboxEndpoint *ep)
{
	TimestampTz until = ep ? outbox_slots_judge_at(ep) : 0;

	if (until != 0)
		pass.paid_at = Min(pass.paid_at, until);
	return until != 0;
}

static Left *
left_at(int place)
{
	return place < list_length(pass.left) ? list_nth(pass.left, place) : NULL;
}

/* Returns the place of the first that is left and has an id from this one on. */
static int
left_from(int64 endpoint_id)
{
	int low = 0;

	outbox_find_place(low, list_length(pass.left), i,
					  left_at(i)->endpoint_id < endpoint_id);
	return low;
}

/* Returns the first endpoint behind this one that the pass leaves alone (NULL: none). */
static Left *
next_left(int32 endpoint_id)
{
	Left *left = left_at(left_from((int64) endpoint_id + 1));

	return left && left->endpoint_id <= pass.last ? left : NULL;
}

static Left *
find_left(int32 endpoint_id)
{
	Left *left = left_at(left_from(endpoint_id));

	return left && left->endpoint_id == endpoint_id ? left : NULL;
}

static bool
is_left(int32 endpoint_id)
{
	const Left *left = find_left(endpoint_id);

	return left && left->passed != GOES_ON;
}

static void
leave(int32 endpoint_id, int64 passed)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Left		 *left = find_left(endpoint_id);

	if (left == NULL)
	{
		left = palloc(sizeof(Left));
		left->endpoint_id = endpoint_id;
		pass.left = list_insert_nth(pass.left, left_from(endpoint_id), left);
	}
	left->passed = passed;
	MemoryContextSwitchTo(old);
}

static void
forget(Left *left)
{
	pass.left = list_delete_nth_cell(pass.left, left_from(left->endpoint_id));
	pfree(left);
}

/* Returns an endpoint that has paid (NULL: none), each in turn. */
static Left *
find_paid(TimestampTz now)
{
	int first = left_from((int64) pass.turn + 1);

	if (now < pass.paid_at)
		return NULL;
	pass.paid_at = DT_NOEND;
	for (int i = 0; i < list_length(pass.left); i++)
	{
		Left *left = left_at((first + i) % list_length(pass.left));

		if (left->passed < 0 || owes(outbox_loop_find(left->endpoint_id)))
			continue;
		pass.paid_at = now;
		return left;
	}
	return NULL;
}

/* What was committed since it began may have lower numbers, so it begins once more. */
static void
end_turn(void)
{
	Left *left = find_left(pass.turn);

	if (left == NULL || left->passed != GOES_ON)
		return;
	left->passed = 0;
	pass.paid_at = DT_NOBEGIN;
}

static void
resume(Left *left)
{
	end_turn();
	pass.turn = left->endpoint_id;
	pass.place = (OutboxCommandPlace){.endpoint_id = pass.turn, .passed = left->passed};
	if (left->passed > 0)
		left->passed = GOES_ON;
	else
		forget(left);
}

TimestampTz
outbox_command_pass_due(TimestampTz now)
{
	if (pass.active || find_paid(now) != NULL)
		return 0;
	return Min(pass.paid_at, outbox_loop.commands_pending ? pass.rested_at : DT_NOEND);
}

TimestampTz
outbox_command_pass_begun(void)
{
	return pass.begun;
}

bool
outbox_command_pass_begin(TimestampTz now)
{
	Left *paid = find_paid(now);

	if (pass.active)
		return false;
	pass.active = true;
	if (paid && (!outbox_loop.commands_pending || now < pass.rested_at))
	{
		pass.last = paid->endpoint_id;
		resume(paid);
		return false;
	}
	pass.begun = now;
	pass.place = (OutboxCommandPlace){0};
	pass.last = PG_INT32_MAX;
	outbox_loop.commands_pending = false;
	for (int i = list_length(pass.left) - 1; i >= 0; i--)
		if (left_at(i)->passed == WITH_ALL)
			forget(left_at(i));
	return true;
}

OutboxCommandPlace
outbox_command_pass_place(void)
{
	const Left		  *left = next_left(pass.place.endpoint_id);
	OutboxCommandPlace place = pass.place;

	place.upto = left ? left->endpoint_id - 1 : pass.last;
	return place;
}

void
outbox_command_pass_read(TimestampTz began)
{
	if (pass.place.endpoint_id == 0)
		pass.rested_at = outbox_step_rest(began, REST_FACTOR);
}

bool
outbox_command_pass_next_part(void)
{
	Left *left = next_left(pass.place.endpoint_id);

	if (left == NULL)
		return false;
	do
	{
		if (left->passed >= 0 && !owes(outbox_loop_find(left->endpoint_id)))
		{
			resume(left);
			break;
		}
		pass.place.endpoint_id = left->endpoint_id;
		pass.place.passed = PG_INT64_MAX;
		left = next_left(left->endpoint_id);
	} while (left && left->endpoint_id == pass.place.endpoint_id + 1);
	return true;
}

/*
 * The commands wait while the endpoint is being loaded, here or in another worker, was moved
 * to another position since it was loaded, or cannot be stored.  When that is over, there is
 * another pass.
 */
bool
outbox_command_pass_leaves(int32 endpoint_id, OutboxEndpoint *ep, int64 generation)
{
	bool waits;

	if (is_left(endpoint_id))
		return true;
	if (ep)
		waits = ep->member.recreate || ep->status.unstorable ||
			generation > ep->config.generation;
	else
		waits = outbox_roster_expects(endpoint_id);
	if (!waits && !owes(ep))
		return false;
	leave(endpoint_id,
		  waits										? WITH_ALL :
			  pass.place.endpoint_id == endpoint_id ? pass.place.passed :
													  0);
	return true;
}

bool
outbox_command_pass_is_last(int32 endpoint_id)
{
	return next_left(Max(endpoint_id, pass.place.endpoint_id)) == NULL;
}

void
outbox_command_pass_to(int32 endpoint_id, int64 id, OutboxEndpoint *ep)
{
	bool waits = is_left(endpoint_id);

	pass.place.endpoint_id = endpoint_id;
	pass.place.passed = id;
	if (!waits && !owes(ep))
		return;
	if (!waits)
		leave(endpoint_id, id);
	pass.place.passed = PG_INT64_MAX;
	if (endpoint_id == pass.last)
		outbox_command_pass_end();
}

void
outbox_command_pass_end(void)
{
	pass.active = false;
	end_turn();
}
