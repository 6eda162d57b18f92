/* Not a sink.  A session that loads it waits until it is cancelled. */
#include "postgres.h"

#include "extension/outbox/transport.h"
#include "fmgr.h"
#include "miscadmin.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT const OutboxTransport *outbox_sink(void);

const OutboxTransport *
outbox_sink(void)
{
	while (MyBackendType == B_BACKEND)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(10 * 1000);
	}
	return NULL;
}
