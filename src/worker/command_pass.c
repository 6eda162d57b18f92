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

#include "utils/memutils.h"

#include "worker/command_pass.h"
#include "worker/loop.h"
#include "worker/roster.h"
#include "worker/slots.h"

/* An endpoint whose commands wait. */
typedef struct Left
{
	int32 endpoint_id;
	int64 passed; /* the last command that was carried out (0: none) */
	bool  owes;	  /* true if they only wait until it has paid for these */
} Left;

static struct
{
	bool			   active;
	OutboxCommandPlace place;	/* without 'upto' */
	int32			   last;	/* endpoints with higher ids are not in the pass */
	int32			   resumed; /* an endpoint that did not begin with its first command,
								 * and does not owe (0: none) */
	TimestampTz		   begun;	/* the last one with all endpoints */
	List			  *left;	/* of Left, by endpoint_id */
	TimestampTz		   paid_at; /* when one of these may have paid */
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
	int high = list_length(pass.left);

	while (low < high)
	{
		int middle = low + (high - low) / 2;

		if (left_at(middle)->endpoint_id < endpoint_id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Returns the first endpoint behind this one that the pass leaves alone (NULL: none). */
static Left *
next_left(int32 endpoint_id)
{
	Left *left = left_at(left_from((int64) endpoint_id + 1));

	return left && left->endpoint_id <= pass.last ? left : NULL;
}

static void
leave(int32 endpoint_id, int64 passed, bool owes)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Left		 *left = palloc(sizeof(Left));

	*left = (Left){.endpoint_id = endpoint_id, .passed = passed, .owes = owes};
	pass.left = list_insert_nth(pass.left, left_from(endpoint_id), left);
	if (owes && pass.resumed == endpoint_id)
		pass.resumed = 0;
	MemoryContextSwitchTo(old);
}

static void
forget(Left *left)
{
	pass.left = list_delete_nth_cell(pass.left, left_from(left->endpoint_id));
	pfree(left);
}

/* Returns an endpoint that has paid (NULL: none). */
static Left *
find_paid(TimestampTz now)
{
	if (now < pass.paid_at)
		return NULL;
	pass.paid_at = DT_NOEND;
	for (int i = 0; i < list_length(pass.left); i++)
	{
		Left *left = left_at(i);

		if (!left->owes || owes(outbox_loop_find(left->endpoint_id)))
			continue;
		pass.paid_at = now;
		return left;
	}
	return NULL;
}

static void
resume(Left *left)
{
	/* What was committed since then may have lower numbers. */
	if (pass.resumed != 0)
		outbox_loop.commands_pending = true;
	pass.place.endpoint_id = pass.resumed = left->endpoint_id;
	pass.place.passed = left->passed;
	forget(left);
}

bool
outbox_command_pass_goes_on(TimestampTz now)
{
	return pass.active || find_paid(now) != NULL;
}

TimestampTz
outbox_command_pass_next_time(void)
{
	return pass.paid_at;
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
	pass.resumed = 0;
	if (!outbox_loop.commands_pending && paid)
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
		if (!left_at(i)->owes)
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

bool
outbox_command_pass_next_part(void)
{
	Left *left = next_left(pass.place.endpoint_id);

	if (left == NULL)
		return false;
	if (left->owes && !owes(outbox_loop_find(left->endpoint_id)))
		resume(left);
	else
	{
		pass.place.endpoint_id = left->endpoint_id;
		pass.place.passed = PG_INT64_MAX;
	}
	return true;
}

/*
 * The commands wait while the endpoint is being loaded, here or in another worker, or
 * cannot be stored.  When that is over, there is another pass.
 */
bool
outbox_command_pass_leaves(int32 endpoint_id, OutboxEndpoint *ep)
{
	const Left *left = left_at(left_from(endpoint_id));
	bool		waits = ep ? ep->member.recreate || ep->status.unstorable :
							 outbox_roster_expects(endpoint_id);

	if (left && left->endpoint_id == endpoint_id)
		return true;
	if (!waits && !owes(ep))
		return false;
	leave(endpoint_id, pass.place.endpoint_id == endpoint_id ? pass.place.passed : 0,
		  !waits);
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
	const Left *left = left_at(left_from(endpoint_id));
	bool		waits = left && left->endpoint_id == endpoint_id;

	pass.place.endpoint_id = endpoint_id;
	pass.place.passed = id;
	if (!waits && !owes(ep))
		return;
	if (!waits)
		leave(endpoint_id, id, true);
	pass.place.passed = PG_INT64_MAX;
	if (endpoint_id == pass.last)
		outbox_command_pass_end();
}

void
outbox_command_pass_end(void)
{
	pass.active = false;
	if (pass.resumed != 0)
		outbox_loop.commands_pending = true;
}
