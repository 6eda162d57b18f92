/*
 * http.c
 *	  Owns requests in flight: transfers from acquire to 'done', and the loop.
 *
 * A transfer is in exactly one state.  acquire makes or reuses one.  start gives it to
 * libcurl, or lets it wait for the first request of its target.  When it has ended,
 * 'done' is called.  It is then free again, and keeps its handle, its buffers and all
 * options that need not be set twice.
 */
#include "base/settings.h"
#include "transport/http/http_internal.h"

#include <limits.h>
#include <stdlib.h>

#define BODY_TIME_MAX 1000 /* ms after the headers */
#define LOOK_EVERY 5000	   /* ms */
#define ROUNDS_MAX 16	   /* of one http_poll() */

/*
 * ms of one http_poll(), after which no further round begins: POLL_TIME, and POLL_SHARE
 * times the rest of the worker's round, but at most POLL_TIME_MAX.  A worker that has
 * much to do in each round then takes more answers in each.
 */
#define POLL_TIME 1
#define POLL_SHARE 3
#define POLL_TIME_MAX 20

#define ANSWER_KEPT (4 * 1024) /* bytes of an answer that a free transfer keeps */
#define FREE_KEPT 512		   /* free transfers, 16 kB each */

/* Buffers of libcurl, the headers, and the beginning of the answer. */
#define REQUEST_BYTES (48 * 1024)

void (*outbox_http_serves)(int32_t endpoint);

static OutboxDone report;

static dlist_head all_transfers = DLIST_STATIC_INIT(all_transfers);
static int64	  next_look = OUTBOX_HTTP_NEVER; /* at requests that are late */
static dlist_head free_transfers = DLIST_STATIC_INIT(free_transfers);
static int		  nfree;
static dlist_head unstarted = DLIST_STATIC_INIT(unstarted);
static dlist_head answered = DLIST_STATIC_INIT(answered);
static dlist_head reading = DLIST_STATIC_INIT(reading); /* until the body ends */
static int64	  polled_at;							/* ms: end of the last poll */
static int64	  asked_at; /* ms: end of the worker's work then; 0: it goes on */

/* The headers are complete, so the status is final. */
static void
got_headers(OutboxTransfer *t)
{
	t->state = ANSWERED;
	t->body_deadline = 0;
	if (t->whole_answer && t->head.status <= 299)
		dlist_push_tail(&reading, &t->node);
	else
		dlist_push_tail(&answered, &t->node);
}

/*
 * Acquire and release
 */

static OutboxTransfer *
http_acquire(void)
{
	OutboxTransfer *t;

	if (nfree > 0)
	{
		t = dlist_container(OutboxTransfer, node, dlist_pop_head_node(&free_transfers));
		nfree--;
	}
	else
	{
		t = calloc(1, sizeof(*t));
		if (t == NULL)
			return NULL;
		t->got_headers = got_headers;
		if (!outbox_http_make_handle(t))
		{
			free(t);
			return NULL;
		}
		dlist_push_head(&all_transfers, &t->made);
	}
	t->state = ACQUIRED;
	t->done = report;
	t->origin = NULL;
	outbox_headers_reset(&t->headers);
	return t;
}

static OutboxHeaders *
http_headers(OutboxTransfer *t)
{
	return &t->headers;
}

/* They may have a credential, and the answer a token. */
static void
wipe(OutboxTransfer *t)
{
	if (t->headers.buf)
		explicit_bzero(t->headers.buf, t->headers.len);
	if (t->answer)
		explicit_bzero(t->answer, Min(t->answer_len, t->answer_size));
	t->answer_len = 0;
}

static void
free_transfer(OutboxTransfer *t)
{
	dlist_delete(&t->made);
	outbox_http_rest_leave(&t->rest); /* libcurl may have said of it that it goes on */
	curl_easy_cleanup(t->easy);
	curl_share_cleanup(t->cache);
	free(t->headers.buf);
	free(t->headers.start);
	free(t->headers.lines);
	free(t->lines);
	free(t->url);
	free(t->resolve);
	curl_url_cleanup(t->parsed);
	free(t->answer);
	free(t);
}

static void
http_release(OutboxTransfer *t)
{
	outbox_http_auth_end(t);
	wipe(t);
	if (nfree >= FREE_KEPT)
	{
		free_transfer(t);
		return;
	}
	if (t->answer_size > ANSWER_KEPT)
	{
		free(t->answer);
		t->answer = NULL;
		t->answer_size = 0;
	}
	/* libcurl keeps the head of the answer until the handle's next request. */
	if (t->head.bytes > ANSWER_KEPT)
		outbox_http_free_handle(t);
	t->state = FREE;
	dlist_push_head(&free_transfers, &t->node);
	nfree++;
}

/*
 * Start and end
 */

/* It was sent so often without an answer that counts. */
static void
note_lost(OutboxTransfer *t, int n, bool refused)
{
	OutboxOutcome *o = &t->outcome;

	o->lost = Max(o->lost, n);
	if (o->lost_words == NULL)
		o->lost_words = refused ?
			"the receiver refused the token, and it was sent again with another" :
			t->set_version == CURL_HTTP_VERSION_1_1 ?
			"the connection was closed before the answer, and it was sent again" :
			"the receiver refused the stream or closed the connection, and it was sent again";
}

static void
end_unstarted(OutboxTransfer *t)
{
	note_lost(t, t->sent, false);
	t->state = UNSTARTED;
	dlist_push_tail(&unstarted, &t->node);
}

static void
end_not_sent(OutboxTransfer *t, const char *lacks)
{
	outbox_http_not_sent(t, lacks);
	end_unstarted(t);
}

/* There are no addresses to which the request could be sent. */
static void
fail_lookup(OutboxTransfer *t, OutboxLookupState why)
{
	char words[128];

	t->outcome.duration = outbox_http_now() - t->begun_at;
	switch (why)
	{
		case OUTBOX_LOOKUP_NO_PLACE:
			end_not_sent(t, OUTBOX_LACKS_LOOKUPS);
			return;
		case OUTBOX_LOOKUP_LACKS:
			end_not_sent(t, "memory, a thread or a file lacks to look up a host name");
			return;
		case OUTBOX_LOOKUP_TIMED_OUT:
			snprintf(words, sizeof(words),
					 "timed out after %g s while resolving the host",
					 Min(t->connect_timeout, t->timeout) / 1000.0);
			outbox_http_fail(t, OUTBOX_FAILURE_DNS, words, "");
			break;
		default:
			outbox_http_fail(t, OUTBOX_FAILURE_DNS,
							 t->proxied ? "could not resolve the proxy's name" :
										  "could not resolve host",
							 "");
	}
	outbox_http_failed(t);
	end_unstarted(t);
}

/*
 * Gives the transfer to libcurl when its addresses are known.  The time of their
 * lookup counts towards the timeouts of the request.
 */
static void
launch(OutboxTransfer *t)
{
	int64			  now = outbox_http_now();
	OutboxLookupState state;
	CURLMcode		  code;

	/* Settings were read while it waited, and its handle has the former ones. */
	if (t->generation != outbox_http_config.generation)
	{
		strlcpy(t->outcome.error, "the settings have changed", sizeof(t->outcome.error));
		end_not_sent(t, NULL);
		return;
	}
	if (t->begun_at == 0)
		outbox_http_begin(t, now);
	state = outbox_http_look_up(t, now);
	if (state == OUTBOX_LOOKUP_WAITS)
	{
		t->state = LOOKING_UP;
		return;
	}
	if (state != OUTBOX_LOOKUP_READY)
	{
		fail_lookup(t, state);
		return;
	}
	if (t->sent == 0)
		t->lookup_took = (int) (now - t->begun_at);
	if (!outbox_http_set_timeouts(t, Max(t->connect_timeout - t->lookup_took, 1),
								  Max(t->timeout - (int) (now - t->begun_at), 1)))
	{
		end_not_sent(t, OUTBOX_LACKS_MEMORY);
		return;
	}
	t->opened[0] = t->opened[1] = -1;
	code = outbox_http_pool_add(t);
	if (code != CURLM_OK)
	{
		end_not_sent(t, curl_multi_strerror(code));
		return;
	}
	t->state = RUNNING;
	t->late_since = 0;
	next_look = Min(next_look, now + LOOK_EVERY);
	outbox_http_pool_added(t->pool);
}

static void
http_start(OutboxTransfer *t, const OutboxTarget *target, OutboxLink *link,
		   const OutboxMessage *message, void *delivery)
{
	const char *complaint = OUTBOX_LACKS_MEMORY;
	const char *hint;

	t->delivery = delivery;
	t->rest.endpoint = target->endpoint;
	t->connect_timeout = target->connect_timeout;
	t->timeout = target->timeout;
	t->begun_at = 0;
	t->lookup_took = 0;
	t->tried = t->connected = false;
	t->v6.sin6_family = 0;
	t->socket_errno = t->sent = 0;
	t->exceeded = NULL;
	t->proxy_bytes = 0;
	memset(&t->head, 0, offsetof(OutboxHead, text));
	t->head.origin = t->origin;
	t->head.keeps_good = target->kept_answer && outbox_log_answer_size > 0;
	t->head.keeps_bad = outbox_log_answer_size > 0;
	t->kept_answer = target->kept_answer;
	t->answer_most = target->kept_answer ? outbox_log_answer_size : 0;
	t->body_bytes = t->answer_len = 0;
	t->whole_answer = 1024 * (size_t) target->whole_answer;
	t->refused = NULL;
	t->errbuf[0] = '\0';
	outbox_outcome_begin(&t->outcome, OUTBOX_RESULT_FAILED);

	t->host = outbox_http_enter_target(target);
	if (!outbox_http_auth_begin(t, link))
	{
		t->outcome.result = OUTBOX_RESULT_UNAVAILABLE; /* the link says why */
		end_unstarted(t);
	}
	else if (t->host == NULL || !outbox_http_auth_header(t) ||
			 (complaint = outbox_http_set_request(t, target, message->body,
												  message->body_len)) != NULL)
	{
		if (strcmp(complaint, OUTBOX_LACKS_MEMORY) == 0)
			outbox_http_not_sent(t, OUTBOX_LACKS_MEMORY);
		else
			outbox_http_fail(t, OUTBOX_FAILURE_INTERNAL, "could not prepare the request",
							 complaint);
		end_unstarted(t);
	}
	else if (t->proxied && (complaint = outbox_http_check_url(t->url, &hint)) != NULL)
	{
		/* Behind a proxy, only a literal address can be judged. */
		outbox_http_fail(t, OUTBOX_FAILURE_ADDRESS, complaint, hint ? hint : "");
		end_unstarted(t);
	}
	else
	{
		/* The target's first request may find a connection at once, and this one need not wait. */
		if (!outbox_http_target_has_room(t->host))
			outbox_http_pools_flush();
		if (outbox_http_run_or_wait(t))
			launch(t);
	}
}

/* Removes the transfer from libcurl, or from its list.  It is then on no list. */
static void
withdraw(OutboxTransfer *t)
{
	outbox_http_serves(t->rest.endpoint);
	outbox_http_rest_leave(&t->rest);
	if (t->state == RUNNING || t->state == ANSWERED)
		outbox_http_pool_remove(t);
	if (t->state != RUNNING && t->state != ACQUIRED)
		dlist_delete(&t->node);
	t->state = ACQUIRED;
}

static void
http_cancel(OutboxTransfer *t)
{
	withdraw(t);
	outbox_http_leave_target(t);
	http_release(t);
}

static void
finish(OutboxTransfer *t, CURLcode code)
{
	OutboxOutcome *o = &t->outcome;
	bool		   was_answered = t->state == ANSWERED;
	bool		   refused;
	curl_off_t	   duration = 0;

	if (!was_answered && t->sent <= OUTBOX_HTTP_SENT_AGAIN &&
		outbox_http_is_lost(t, code))
	{
		withdraw(t);
		t->tried = t->connected = false;
		t->errbuf[0] = '\0';
		launch(t);
		return;
	}
	curl_easy_getinfo(t->easy, CURLINFO_TOTAL_TIME_T, &duration);
	o->duration = t->lookup_took + duration / 1000.0;
	if (was_answered)
	{
		curl_socket_t fd;

		/* A connection of HTTP/2 is used by other requests meanwhile. */
		if (t->set_version == CURL_HTTP_VERSION_2TLS &&
			curl_easy_getinfo(t->easy, CURLINFO_ACTIVESOCKET, &fd) == CURLE_OK && fd >= 0)
			outbox_http_peer_rests(fd);

		outbox_http_take_answer(t, code);
		outbox_http_auth_answered(t);
	}
	else
		outbox_http_explain(t, code);
	refused = was_answered && o->result == OUTBOX_RESULT_UNAVAILABLE;
	note_lost(t, refused ? t->sent : t->sent - 1, refused);
	outbox_http_keep_parts(t);
	withdraw(t);

	if (!was_answered && o->result != OUTBOX_RESULT_UNAVAILABLE)
		outbox_http_failed(t);
	outbox_http_leave_target(t);
	t->done(t->delivery, o);
	http_release(t);
}

/*
 * The loop
 */

/*
 * Reports only transfers that are on the list now, because 'done' may start others that
 * fail at once.
 */
static void
report_unstarted(void)
{
	dlist_iter iter;
	int		   n = 0;

	dlist_foreach(iter, &unstarted) n++;
	while (n-- > 0 && !dlist_is_empty(&unstarted))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_head_node(&unstarted));

		withdraw(t);
		outbox_http_leave_target(t);
		t->done(t->delivery, &t->outcome);
		http_release(t);
	}
}

/* Ends the transfers whose body takes too long.  Their status is already decided. */
static void
end_slow_bodies(void)
{
	dlist_iter iter;
	int64	   now;

	if (dlist_is_empty(&answered))
		return;
	now = outbox_http_now();
	dlist_reverse_foreach(iter, &answered)
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node, iter.cur);

		if (t->body_deadline != 0)
			break;
		t->body_deadline = now + BODY_TIME_MAX;
	}
	while (!dlist_is_empty(&answered))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_head_node(&answered));

		if (t->body_deadline == 0 || t->body_deadline > now)
			break;
		finish(t, CURLE_OK);
	}
}

/*
 * Ends a request that libcurl has forgotten, and whose timeout therefore never comes.  Some
 * versions do when memory lacks.  A process that was stopped first sees to its answers, so
 * the request has to be late at two looks with LOOK_EVERY between them.
 */
static void
end_forgotten(void)
{
	dlist_iter iter;
	int64	   now;

	if (next_look == OUTBOX_HTTP_NEVER || (now = outbox_http_now()) < next_look)
		return;
	next_look = OUTBOX_HTTP_NEVER;
	dlist_foreach(iter, &all_transfers)
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, made, iter.cur);

		if (t->state != RUNNING)
			continue;
		if (t->late_since != 0 && now - t->late_since >= LOOK_EVERY)
		{
			next_look = now; /* the list may change */
			finish(t, t->connected ? CURLE_OPERATION_TIMEDOUT : CURLE_OUT_OF_MEMORY);
			return;
		}
		if (t->late_since == 0 && now - t->begun_at > t->timeout)
			t->late_since = now;
		next_look = now + LOOK_EVERY;
	}
}

static void
http_poll(void)
{
	int64 now = outbox_http_now();
	int64 rest = (asked_at ? asked_at : now) - polled_at;
	int64 until = now + Min(POLL_TIME + POLL_SHARE * rest, POLL_TIME_MAX);
	bool  more = true;

	outbox_polls_begin(&outbox_http_polls, now);
	outbox_http_rests_step();
	for (int round = 0; round == 0 || (round < ROUNDS_MAX && outbox_http_now() <= until);
		 round++)
	{
		OutboxTransfer *t;
		CURLcode		result;

		if (more)
			more = outbox_http_events(outbox_http_pool_act, until);
		outbox_http_lookups_step(outbox_http_now(), launch, fail_lookup);
		outbox_http_pools_run_timers(until);
		while ((t = outbox_http_pools_next_ended(&result)) != NULL)
			finish(t, result);
		end_slow_bodies();
		end_forgotten();
		report_unstarted();
		outbox_http_pools_check_room();
		outbox_http_start_waiting(launch, until);
		if (!more && outbox_http_pools_next_timer() != 0 && dlist_is_empty(&unstarted))
			break;
	}
	outbox_http_pools_flush(); /* requests started last do not wait for the next poll */
	polled_at = outbox_http_polls.due_at = outbox_http_now();
	asked_at = 0;
}

static long
http_timeout(void)
{
	int64 at = outbox_http_pools_next_timer();
	int64 now = outbox_http_now();

	asked_at = now; /* the worker sleeps, or polls again */
	if (at == 0 || outbox_http_pools_may_have_ended() || !dlist_is_empty(&unstarted))
		return 0;
	if (!dlist_is_empty(&answered))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_head_node(&answered));

		at = Min(at, t->body_deadline);
	}
	at = Min(at, outbox_http_lookups_deadline());
	at = Min(at, outbox_http_targets_deadline());
	at = Min(at, outbox_http_rests_deadline());
	at = Min(at, next_look);
	outbox_polls_next(&outbox_http_polls, at);
	if (at == OUTBOX_HTTP_NEVER)
		return -1;
	return at <= now ? 0 : (long) Min(at - now, PG_INT32_MAX);
}

static void
http_reload(void)
{
	outbox_http_reload_settings();
	outbox_http_forget_lookups(outbox_http_now());
}

static void
http_init(const OutboxServices *services)
{
	OutboxTransfer *t;
	bool			ok;

	report = services->done;
	outbox_http_serves = services->serves;
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		ereport(
			ERROR,
			(errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not initialize libcurl"),
			 errhint(
				 "Check that libcurl and its TLS library are installed completely.")));
	outbox_http_config.tls_is_bounded = outbox_http_can_bound_tls();
	outbox_http_config.have_http2 = outbox_http_config.tls_is_bounded &&
		(curl_version_info(CURLVERSION_NOW)->features & CURL_VERSION_HTTP2) != 0;
	if (!outbox_http_config.tls_is_bounded)
		ereport(LOG,
				(errmsg("outbox worker does not bound what a receiver sends by TLS"),
				 errhint("Use a libcurl that was built with OpenSSL.")));
	outbox_http_first_settings();
	outbox_http_targets_init();

	ok = outbox_http_sockets_init() && outbox_http_pools_init() &&
		outbox_http_lookups_init();

	/* If libcurl lacks an option, that is found here and not at the first event. */
	t = ok ? http_acquire() : NULL;
	if (t == NULL)
		ereport(
			ERROR,
			(errcode(ERRCODE_SYSTEM_ERROR),
			 errmsg("could not set up libcurl %s",
					curl_version_info(CURLVERSION_NOW)->version),
			 errhint(
				 "outbox needs libcurl 7.80 or newer with TLS, and not older than the one it was built with.")));
	http_release(t);
}

static void
http_shutdown(void)
{
	dlist_mutable_iter iter;

	/* All must be off their lists before any of them is freed. */
	nfree = INT_MIN;
	dlist_foreach_modify(iter, &all_transfers)
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, made, iter.cur);

		if (t->state != FREE && t->state != ACQUIRED)
			http_cancel(t);
	}
	dlist_foreach_modify(iter, &all_transfers)
		free_transfer(dlist_container(OutboxTransfer, made, iter.cur));
	dlist_init(&free_transfers);
	nfree = 0;
	outbox_http_targets_shutdown();
	outbox_http_pools_shutdown();
	outbox_http_sockets_shutdown();
	curl_global_cleanup();
}

const OutboxTransport outbox_http_transport = {
	.abi = OUTBOX_TRANSPORT_ABI,
	.size = sizeof(OutboxTransport),
	.name = "webhook",
	.memory = REQUEST_BYTES,
	.default_format = "standard",
	.default_in_flight = 32,
	.default_timeout = 15000,
	.attribute_prefix = "ce-",
	.config_names = outbox_http_config_names,
	.credential_names = outbox_http_credential_names,
	.check = outbox_http_check_target,
	.keeps_credentials = outbox_http_keeps_credentials,
	.init = http_init,
	.reload = http_reload,
	.fd = outbox_http_fd,
	.timeout = http_timeout,
	.poll = http_poll,
	.open = outbox_http_open,
	.state = outbox_http_link_state,
	.close = outbox_http_close,
	.acquire = http_acquire,
	.headers = http_headers,
	.release = http_release,
	.start = http_start,
	.flush = outbox_http_pools_flush,
	.width = outbox_http_width_of,
	.cancel = http_cancel,
	.shutdown = http_shutdown,
};
