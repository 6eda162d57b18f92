#ifndef OUTBOX_SINKS_H
#define OUTBOX_SINKS_H

#include "base/outbox.h"

#include "transport/transport.h"

#define OUTBOX_SINKS_MAX 8

/* The transports that this worker has.  Filled by outbox_sinks_load(). */
extern int					  outbox_ntransports;
extern const OutboxTransport *outbox_transports[OUTBOX_SINKS_MAX];

/* Returns the problem with a value of outbox.sinks, static text; NULL: none. */
extern const char *outbox_sinks_problem(const char *names);

/*
 * Checks a URL for create_endpoint(), as outbox_http_check_url() does.  Of a sink that
 * is a library, the rest of the URL is checked by its worker.
 */
extern const char *outbox_sinks_check_url(const char *url, const char **hint);

/*
 * Loads the libraries that the setting names, and starts all transports.  'given' has the
 * services of the worker: done, serves and thread_serves.  A library
 * that cannot be used is logged, and its endpoints are held.  Throws an error if
 * webhooks cannot be sent.
 */
extern void outbox_sinks_load(const OutboxServices *given,
							  bool (*worked)(int32_t endpoint),
							  bool (*owes)(int32_t endpoint));

/*
 * Returns the transport that would serve the URL, not started: only functions that work
 * without init may be used.  It loads the sink's library into the session.  NULL:
 * '*problem' says why there is none, valid until the next call.
 */
extern const OutboxTransport *outbox_sinks_in_session(const char  *url,
													  const char **problem);

/* True if the worker has to start again for a changed setting or a missing library. */
extern bool outbox_sinks_outdated(void);

/* The settings were read again. */
extern void outbox_sinks_reload(void);

/*
 * Returns the transport that serves the URL.  NULL: none does, and '*problem' says
 * why, valid while the process lasts.
 */
extern const OutboxTransport *outbox_sinks_find(const char *url, const char **problem);

#endif /* OUTBOX_SINKS_H */
