/*
 * http_internal.h
 *	  Types and functions that the files of the folder "http" share.  No other file
 *	  includes it.  README.md says what each owns.
 */
#ifndef OUTBOX_HTTP_INTERNAL_H
#define OUTBOX_HTTP_INTERNAL_H

#include "format/header_lines.h"
#include "transport/http/http.h"

#include <time.h>
#include <sys/socket.h>

#include "transport/address.h"
#include "transport/libcurl.h"
#include "transport/polls.h"
#include "lib/ilist.h"

#include <netinet/in.h>

/*
 * CURLOPT_PREREQFUNCTION, without which the address of a reused connection would not
 * be judged.
 */
#if LIBCURL_VERSION_NUM < 0x075000
#error "outbox needs libcurl 7.80 or newer"
#endif

typedef enum OutboxTransferState
{
	FREE,		/* on free_transfers */
	ACQUIRED,	/* on no list */
	WAITING,	/* on its host's list */
	LOOKING_UP, /* on its name's list */
	UNSTARTED,	/* on unstarted: outcome known, 'done' is due */
	RUNNING,	/* in libcurl, on no list */
	ANSWERED	/* in libcurl, on answered or reading; headers complete */
} OutboxTransferState;

/* http_width.c: how many transfers of a target may run. */
#define OUTBOX_WIDTH_FIRST 32

typedef struct OutboxWidth
{
	int	   first; /* 'most' in the beginning */
	int	   most;
	int	   ended;		/* since 'since': the caller counts */
	int	   good;		/* of these, with a 2xx */
	double rate_before; /* answers per ms with half as many; < 0: not known */
	bool   refused;		/* more were tried, and brought nothing */
	bool   settling;	/* nothing is measured yet */
	int64  since;		/* ms */
	int64  begun_at;	/* ms */
} OutboxWidth;

/*
 * settle: the measurement has lost its meaning, because no more were wanted.
 * step: to be called about every 10 ms while more are wanted.  'running' includes
 * 'connecting', which have no connection yet.
 */
extern void outbox_width_begin(OutboxWidth *w, int first, int64 now);
extern void outbox_width_settle(OutboxWidth *w, int64 now);
extern void outbox_width_step(OutboxWidth *w, int running, int connecting, int64 now);

/*
 * State of a target while it has transfers: its limit, and the transfers that wait for
 * its first connection.  Until a transfer has got a connection to it, this transfer
 * goes first and the others wait.  A receiver that speaks HTTP/2 then gets one
 * connection instead of one per request.  (libcurl's own PIPEWAIT queues all targets in
 * one line, in which a stalled target delays the others.)  A transfer that gets no
 * connection has failed alone: then twice as many go first.
 */
typedef struct OutboxTargetState
{
	dlist_node	node; /* in its bucket, or on free_hosts */
	const void *key;  /* the target's address in memory, never dereferenced */
	int			in_flight;
	int			running;	/* of these, not on 'waiting' */
	int			connecting; /* of these, without a connection */
	OutboxWidth width;
	bool		asked; /* for more, since the last look at it */
	dlist_node	full;  /* on full_hosts */
	bool		open;  /* a transfer got a connection, and none has failed since */
	int			most;  /* that connect while not open */
	dlist_head	waiting;
	dlist_node	ready; /* on ready_hosts: may start waiting transfers */
} OutboxTargetState;

typedef enum OutboxHeadState
{
	OUTBOX_HEAD_STATUS,	   /* a status line comes next */
	OUTBOX_HEAD_LINES,	   /* a header line, or the end */
	OUTBOX_HEAD_COMPLETE,  /* the status is final, only trailers follow */
	OUTBOX_HEAD_OVERSIZED, /* above the limits */
	OUTBOX_HEAD_CODED	   /* a transfer coding other than chunked */
} OutboxHeadState;

#define OUTBOX_HEAD_TEXT 2048 /* bytes of the header lines that are kept */

/* The head of an answer while it is received.  Zero at first, but for 'text'. */
typedef struct OutboxHead
{
	OutboxHeadState state;
	int				status;
	bool			encoded;	   /* compressed, although that was not requested */
	bool			disable;	   /* webhook-delivery: disable */
	bool			abort_message; /* webhook-delivery: abort-message */
	const char	   *origin;		   /* that is asked about (NULL: none) */
	bool			allowed;	   /* webhook-allowed-origin has it */
	double			allowed_rate;  /* webhook-allowed-rate, per second (0: any) */
	int				lines;
	size_t			bytes;

	/* The lines "name: value" that are kept. */
	bool   keeps_good; /* of a 2xx */
	bool   keeps_bad;  /* of any other */
	bool   keeps;	   /* of this answer */
	int	   left_out;   /* lines for which there was no room */
	size_t text_len;
	char   text[OUTBOX_HEAD_TEXT];
} OutboxHead;

#define OUTBOX_HTTP_NEVER PG_INT64_MAX

/* One of libcurl's multi handles, with the connections to its share of the hosts. */
typedef struct OutboxHttpPool
{
	CURLM *multi;
	int	   index;
	int	   running;	 /* requests */
	int64  timer_at; /* ms; 0: now */

	/* The limit that a peer with HTTP/2 has exceeded, in words.  NULL: none since. */
	const char *exceeded;
} OutboxHttpPool;

/* Certificates of an endpoint's own, in PEM.  'len' is 0 for each that it lacks. */
typedef struct OutboxHttpIdentity
{
	uint64			 number; /* of the link */
	struct curl_blob certificate;
	struct curl_blob key;
	struct curl_blob authority;
} OutboxHttpIdentity;

struct OutboxTransfer
{
	dlist_node			node;
	dlist_node			made; /* in all_transfers */
	OutboxTransferState state;
	CURL			   *easy;
	void (*got_headers)(OutboxTransfer *t); /* called when the headers are complete */
	OutboxHeaders	   headers;
	struct curl_slist *lines; /* nodes that point into headers.buf */
	int				   max_lines;

	/* The options that the handle has. */
	unsigned		  generation; /* of the settings; 0: there is no handle */
	char			 *url;
	size_t			  url_size;
	CURLU			 *parsed;			/* the parsed form of url */
	uint64			  host_hash;		/* of url */
	OutboxHttpPool	 *pool;				/* in which it runs */
	char			  lookup_host[256]; /* its host; empty: an address */
	int				  lookup_port;
	bool			  plain;		/* not https */
	bool			  proxied;		/* by the proxy of its generation */
	long			  set_version;	/* of HTTP, as libcurl's number; 0: none yet */
	const char		 *set_method;	/* NULL: POST */
	uint64			  set_identity; /* link whose certificates it has; 0: none */
	int				  set_connect_timeout;
	int				  set_timeout;
	bool			  fresh;			/* if it is sent again, over a new connection */
	long			  age;				/* s, since the last reload */
	CURLSH			 *cache;			/* its addresses; NULL: none yet */
	struct curl_slist resolve_lines[2]; /* text of 'resolve' */
	/* 'known_since' of the addresses that libcurl was given; 0: none, -1: unknown. */
	int64  resolve_since;
	char  *resolve; /* for CURLOPT_RESOLVE */
	size_t resolve_size;

	/* A body that is kept whole.  The memory is kept for the next one. */
	char	   *answer;
	size_t		answer_size;
	OutboxTimes times;

	/* The request in flight. */
	OutboxRest				  rest; /* its endpoint, too */
	OutboxTargetState		 *host;
	void					 *delivery;
	OutboxDone				  done;		/* gets the outcome */
	OutboxLink				 *link;		/* of its endpoint; NULL: none */
	const OutboxHttpIdentity *identity; /* of its link; NULL: none */
	const char				 *origin;	/* OPTIONS asks whether it is allowed; NULL: no */
	uint64					  token;	/* number of the token that it has */
	int						  connect_timeout; /* ms */
	int						  timeout;
	int64					  begun_at; /* ms; 0: not launched yet */
	int64					  lookup_deadline;
	int						  lookup_took; /* ms */
	bool					  runs;		   /* counted in host->running */
	bool					  connects;	   /* counted in host->connecting */
	int64					  late_since;  /* a look found it past its timeout; 0: none */
	bool					  tried;	   /* some address was not refused */
	bool					  connected;
	int						  sent;			/* so often */
	struct sockaddr_in6		  v6;			/* tried last; family 0: none */
	int						  opened[2];	/* last, for IPv4 and IPv6 */
	size_t					  answer_most;	/* bytes that are kept of a good one's body */
	size_t					  whole_answer; /* bytes of a good one; 0: none */
	bool					  kept_answer;
	size_t					  answer_len;
	int						  socket_errno;
	const char				 *exceeded; /* the limit that the peer exceeded, in words */
	int						  proxy_bytes;
	OutboxHead				  head;
	size_t					  body_bytes;
	const char				 *refused; /* the name of the range, or outbox_http_public */
	int64					  body_deadline; /* 0: not set yet */
	OutboxOutcome			  outcome;
	char					  errbuf[CURL_ERROR_SIZE];
};

/* ms of the clock that never goes back */
static inline int64
outbox_http_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/*
 * http_settings.c: the settings that handles depend on.  Each reload makes a new
 * generation.
 */
typedef struct OutboxHttpConfig
{
	unsigned generation;
	bool	 use_proxy;
	bool	 tls_is_bounded; /* by http_peer.c: libcurl has OpenSSL */
	bool	 have_http2;
	char	 proxy_host[256]; /* empty: an address */
	int		 proxy_port;
} OutboxHttpConfig;

extern OutboxHttpConfig outbox_http_config;

/* The service of that name, which is called wherever it becomes known. */
extern void (*outbox_http_serves)(int32_t endpoint);

/* Read the settings when the worker starts, and after a reload. */
extern void outbox_http_first_settings(void);
extern void outbox_http_reload_settings(void);

/* Seconds since the last reload.  Without one, since the machine started. */
extern long outbox_http_since_reload(void);

/*
 * http_handle.c.  make_handle and set_timeouts return false if libcurl fails.
 * set_request returns NULL, or the problem in words.  It makes a handle if there is none.
 */
extern bool		   outbox_http_make_handle(OutboxTransfer *t);
extern void		   outbox_http_free_handle(OutboxTransfer *t);
extern const char *outbox_http_set_request(OutboxTransfer *t, const OutboxTarget *target,
										   const char *body, size_t body_len);
extern bool outbox_http_set_timeouts(OutboxTransfer *t, int connect_timeout, int timeout);

/*
 * http_failure.c.  fail and explain store a failure in t->outcome.  not_sent: the transfer
 * could not be, for a lack of our own, which a static text names.  is_lack is true for an
 * errno that means one.  is_lost is true if nothing of an answer has come, and the cause
 * is a connection that others have used before, or a stream that was refused.
 * was_held_up is true if the request's timeout ended while a poll was late: then it counts
 * as not sent.  public is the name for the range of a public address, which needs TLS.
 */
#define OUTBOX_HTTP_SENT_AGAIN 5 /* times at most, by libcurl or by us */
#define OUTBOX_LACKS_MEMORY "out of memory"
#define OUTBOX_LACKS_FILE "the process can open no more files"
extern const char  outbox_http_public[];
extern void		   outbox_http_not_sent(OutboxTransfer *t, const char *lacks);
extern bool		   outbox_http_is_lack(int error);
extern bool		   outbox_http_is_lost(const OutboxTransfer *t, CURLcode code);
extern OutboxPolls outbox_http_polls; /* written by http.c */
extern bool		   outbox_http_was_held_up(OutboxTransfer *t, CURLcode code);
extern void outbox_http_fail(OutboxTransfer *t, OutboxFailure failure, const char *words,
							 const char *detail);
extern void outbox_http_explain(OutboxTransfer *t, CURLcode code);

/*
 * http_target.c.  A transfer enters its target's host when it is started (NULL: out of
 * memory).  It leaves it when it is out of libcurl and out of the host's list.
 * has_room: a transfer need not wait for the host's first one.
 * run_or_wait returns true if it is to be launched.  got_through: there is a connection
 * that this request may use.  failed: it got no answer, and transfers that wait for its
 * connection need another one.  start_waiting: launches waiting transfers that may run
 * now, at least one and until the time is over.  Must be called at the deadline.
 */
extern void				  outbox_http_targets_init(void);
extern void				  outbox_http_targets_shutdown(void);
extern OutboxTargetState *outbox_http_enter_target(const void *key);
extern void				  outbox_http_leave_target(OutboxTransfer *t);
extern int				  outbox_http_width_of(const OutboxTarget *target, bool more);
extern void				  outbox_http_got_through(OutboxTransfer *t);
extern void				  outbox_http_failed(OutboxTransfer *t);
extern bool				  outbox_http_target_has_room(const OutboxTargetState *host);
extern bool				  outbox_http_run_or_wait(OutboxTransfer *t);
extern int64			  outbox_http_targets_deadline(void);
extern void outbox_http_start_waiting(void (*launch)(OutboxTransfer *t), int64 until);

/*
 * http_lookup.c.
 *
 * look_up returns READY if the handle has the addresses, or needs none.  It returns
 * WAITS if the transfer is on a list.  A later step then removes it from the list and
 * calls 'go_on' (look up again) or 'fail' with one of the others.
 *
 * begin: the time that the transfer may take begins now.
 * deadline: when step must be called in any case.  forget: addresses that were looked
 * up before are not used any more.
 */
typedef enum OutboxLookupState
{
	OUTBOX_LOOKUP_READY,
	OUTBOX_LOOKUP_WAITS,
	OUTBOX_LOOKUP_NOT_FOUND, /* the name has no address */
	OUTBOX_LOOKUP_TIMED_OUT, /* it has none by the transfer's lookup_deadline */
	OUTBOX_LOOKUP_NO_PLACE,	 /* the lookup has not even begun by then */
	OUTBOX_LOOKUP_LACKS		 /* memory, a thread or a descriptor */
} OutboxLookupState;

extern bool				 outbox_http_lookups_init(void);
extern void				 outbox_http_begin(OutboxTransfer *t, int64 now);
extern OutboxLookupState outbox_http_look_up(OutboxTransfer *t, int64 now);
extern void	 outbox_http_lookups_step(int64 now, void (*go_on)(OutboxTransfer *t),
									  void (*fail)(OutboxTransfer	*t,
												   OutboxLookupState why));
extern int64 outbox_http_lookups_deadline(void);
extern void	 outbox_http_forget_lookups(int64 now);

/* http_head.c */
extern OutboxHeadState outbox_head_line(OutboxHead *head, OutboxOutcome *outcome,
										const char *line, size_t len, int64 now);

/* To be called once when the answer has ended: the lines that are kept. */
extern const char *outbox_head_kept(OutboxHead *head, size_t *len);

/* The value of an entry of config; NULL: there is none. */
static inline const char *
outbox_http_option(const OutboxTarget *target, const char *name)
{
	const OutboxOption *option = outbox_option_find(target->config, target->nconfig,
													name);

	return option ? option->value : NULL;
}

/* http_answer.c: there is a status; and for any end. */
extern void outbox_http_take_answer(OutboxTransfer *t, CURLcode code);
extern void outbox_http_keep_parts(OutboxTransfer *t);

/* http_handle.c */
extern char *outbox_http_url_with_query(const char *url, const char *query);

/* http_config.c: the method, of which NULL is POST. */
extern const char *outbox_http_method(const OutboxTarget *target);

extern const char *outbox_http_auth_problem(const OutboxTarget *target,
											OutboxAdvice	   *advice);

/*
 * http_auth.c.  open, state and close are those of the contract.  auth_begin: the transfer
 * belongs to the link; false: there is no token.  auth_header adds the header line.
 * auth_answered: there is a status.  auth_end: it has ended in any way.
 */
extern OutboxLink	  *outbox_http_open(const OutboxTarget *target, char *reason,
										size_t size);
extern OutboxLinkState outbox_http_link_state(OutboxLink *link, char *reason,
											  size_t size);
extern void			   outbox_http_close(OutboxLink *link);
extern bool			   outbox_http_auth_begin(OutboxTransfer *t, OutboxLink *link);
extern bool			   outbox_http_auth_header(OutboxTransfer *t);
extern void			   outbox_http_auth_answered(OutboxTransfer *t);
extern void			   outbox_http_auth_end(OutboxTransfer *t);

/* http_version.c */
extern bool		   outbox_http_wants_2(const OutboxTarget *target);
extern const char *outbox_http_version_problem(const OutboxTarget *target,
											   const char		 **hint);

/* http_rest.c: see OutboxServices.  owes: the endpoint has taken more work than it may. */
extern bool	   outbox_http_owes(int32_t endpoint);
extern void	   outbox_http_rest_worked(OutboxRest *r, bool connected);
extern void	   outbox_http_rest_begins(OutboxRest *r);
extern void	   outbox_http_rest_leave(OutboxRest *r);
extern void	   outbox_http_rests_step(void);
extern int64_t outbox_http_rests_deadline(void);
extern int64_t outbox_http_rests_timer(int64_t at);

/*
 * http_pool.c.
 *
 * host_hash: of the name and port in a URL.  add: chooses the pool of a request, by its host
 * and then by its endpoint, and gives it the request.  remove: takes that back.
 * pool_act: something has happened to one of its sockets, which 'user' waits for; NULL:
 * several do, over HTTP/2.  added: a request was given to it, and is begun now or with
 * others.  flush: begins the added requests.  run_timers: continues the pools whose time
 * has come.  may_have_ended: next_ended is to be asked.
 * next_ended: a transfer that has ended, and how; NULL: none.
 * check_room: begins or ends to close idle connections.  Cheap, to be called often.
 * are_scarce: more than three quarters of the connections that may stay open are there, or
 * there is no room for as many as a target begins with, and some are idle.  Where nearly all
 * have one of the requests that run, slots decide, and none is closed for another host.
 */
extern bool		 outbox_http_pools_init(void);
extern void		 outbox_http_pools_shutdown(void);
extern uint64	 outbox_http_host_hash(const char *url);
extern CURLMcode outbox_http_pool_add(OutboxTransfer *t);
extern void		 outbox_http_pool_remove(OutboxTransfer *t);
extern void		 outbox_http_pool_act(int index, int fd, int mask, OutboxTransfer *user);
extern void		 outbox_http_pool_added(OutboxHttpPool *pool);
extern void		 outbox_http_pools_flush(void);
extern void		 outbox_http_pools_run_timers(int64 until);
extern int64	 outbox_http_pools_next_timer(void);
extern bool		 outbox_http_pools_may_have_ended(void);
extern OutboxTransfer *outbox_http_pools_next_ended(CURLcode *result);
extern void			   outbox_http_pools_check_room(void);
extern bool			   outbox_http_pools_are_scarce(int running);

/*
 * http_socket.c.  watch: a socket was opened.  socket_holds: it takes so many more bytes of
 * memory until it is closed.  socket_of: that was opened for the transfer; -1: none.  'events' passes epoll's
 * events to 'act', without waiting, with the number of the pool.  It returns true if
 * there may be more of them.
 */
typedef enum OutboxHttpSocket
{
	OUTBOX_HTTP_PLAIN,
	OUTBOX_HTTP_TLS,
	OUTBOX_HTTP_TLS_2 /* HTTP/2 was asked for */
} OutboxHttpSocket;

/* Counts so many bytes more for a socket, until it is closed. */
typedef void (*OutboxHttpHolds)(int fd, size_t more);

/*
 * http_peer.c, see OutboxServices in transport.h.  can_bound_tls: libcurl uses OpenSSL.
 * 'holds' NULL: the socket is of another transport.
 */
extern bool outbox_http_can_bound_tls(void);
extern bool outbox_http_bound_tls(void *ssl_ctx, int fd, OutboxHttpHolds holds, bool two,
								  const char **why);
extern const char *outbox_http_peer_event(int fd);
extern const char *outbox_http_peer_ended(void);
extern void		   outbox_http_peer_rests(int fd);

/* True if a signature of the key is verified fast.  NULL: nothing can be verified with it. */
struct evp_pkey_st;
extern bool		  outbox_http_key_is_cheap(struct evp_pkey_st *key);
extern const char outbox_http_large_key[];

/*
 * http_pem.c: certificates, and a key, of an endpoint's own.  Return NULL, or the problem in
 * words.
 */
extern const char *outbox_http_read_certificates(const char *text, uint64 number,
												 struct curl_blob *blob);
extern const char *outbox_http_read_key(const char *text, struct curl_blob *blob);

/* After an event that the socket takes bytes, and no other: none were written since the last one. */
extern bool outbox_http_peer_takes_nothing(int fd);

extern int	outbox_http_fd(void);
extern bool outbox_http_sockets_init(void);
extern bool outbox_http_watch_pool(OutboxHttpPool *pool);
extern void outbox_http_sockets_shutdown(void);
extern void outbox_http_watch(OutboxTransfer *t, int fd, OutboxHttpSocket kind);
extern void outbox_http_socket_holds(int fd, size_t more);
extern int	outbox_http_socket_of(OutboxTransfer *t);
extern int	outbox_http_close_socket(void *arg, curl_socket_t fd);
extern bool outbox_http_events(void (*act)(int pool, int fd, int mask,
										   OutboxTransfer *user),
							   int64 until);

/*
 * Connections that are open, how many were ever opened, and the bytes of the worker's
 * memory that the open ones take, and among them the idle ones, which no request uses.
 * lacked_files: there was no other descriptor when one was closed, not long ago.  What
 * failed then may have found none, even if there are some again.
 */
extern int	  outbox_http_connections;
extern uint64 outbox_http_opened;
extern size_t outbox_http_connections_bytes;
extern size_t outbox_http_idle_bytes;
extern bool	  outbox_http_lacked_files(void);

/*
 * Adds the descriptor that becomes readable when lookups have ended.  Its events set
 * the flag.
 */
extern bool outbox_http_watch_lookups(int fd);
extern bool outbox_http_lookups_ended;

#endif /* OUTBOX_HTTP_INTERNAL_H */
