/*
 * http_internal.h
 *	  What the files of the room "http" share.  Nobody else includes it.
 *
 *	  http.c			transfers from acquire to 'done', and the loop
 *	  http_handle.c		what a libcurl handle is told, and what it tells
 *	  http_head.c		the head of an answer
 *	  http_target.c		what is known of a target while it has transfers
 *	  http_lookup.c		names and the addresses that they lead to
 *	  http_settings.c	what follows from the settings
 *	  http_socket.c		sockets and the epoll descriptor
 *	  http_url.c		URLs, Retry-After; needs none of this
 */
#ifndef OUTBOX_HTTP_INTERNAL_H
#define OUTBOX_HTTP_INTERNAL_H

#include "transport/http/http.h"

#include <curl/curl.h>
#include <sys/socket.h>

#include "transport/address.h"
#include "lib/ilist.h"

/* CURLOPT_PREREQFUNCTION, without which reused connections go unjudged. */
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
	ANSWERED	/* in libcurl, on answered or on reading: headers
								 * complete */
} OutboxTransferState;

/*
 * What is known of a target while it has transfers.  Until somebody got
 * through to it, one transfer goes ahead and the others wait: a receiver that
 * speaks HTTP/2 gets one connection instead of one per request, and a name
 * whose lookup hangs costs one thread.  (libcurl's own PIPEWAIT queues all
 * targets in one line, where a stalled one holds up the others.)
 */
typedef struct OutboxTargetState
{
	dlist_node		node; /* in its bucket; or on free_hosts */
	const void	   *key;  /* the target's address, never followed */
	int				in_flight;
	bool			open;  /* somebody got through, nobody failed since */
	OutboxTransfer *first; /* goes ahead while not open */
	dlist_head		waiting;
	bool			is_ready; /* on ready_hosts: may let waiting ones go */
	dlist_node		ready;
} OutboxTargetState;

typedef enum OutboxHeadState
{
	OUTBOX_HEAD_STATUS,	  /* a status line comes next */
	OUTBOX_HEAD_LINES,	  /* a header line, or the end */
	OUTBOX_HEAD_COMPLETE, /* the status is final; only trailers follow */
	OUTBOX_HEAD_OVERSIZED /* more than anybody needs */
} OutboxHeadState;

/* The head of an answer, as it comes in; zero at first. */
typedef struct OutboxHead
{
	OutboxHeadState state;
	int				status;
	bool			encoded;	   /* compressed, which nobody asked for */
	bool			disable;	   /* webhook-delivery: disable */
	bool			abort_message; /* webhook-delivery: abort-message */
	int				lines;
	size_t			bytes;
} OutboxHead;

struct OutboxTransfer
{
	dlist_node			node;
	OutboxTransfer	   *next_made;
	OutboxTransferState state;
	CURL			   *easy;
	void (*got_headers)(OutboxTransfer *t); /* called when they are complete */
	OutboxHeaders	   headers;
	struct curl_slist *lines; /* nodes that point into headers.buf */
	int				   max_lines;

	/* What the handle is set to. */
	unsigned		  generation; /* of the settings */
	char			 *url;
	size_t			  url_size;
	CURLU			 *parsed;			/* the same */
	char			  lookup_host[256]; /* its host; empty: an address */
	int				  lookup_port;
	bool			  plain; /* not https */
	int				  set_connect_timeout;
	int				  set_timeout;
	long			  age;				/* s, of the last reload */
	struct curl_slist resolve_lines[2]; /* text of 'resolve' */
	int64			  resolve_since;	/* of the addresses that it was told; 0: none;
								 * -1: not known */
	char			 *resolve;			/* for CURLOPT_RESOLVE */
	size_t			  resolve_size;

	/* A body that is kept whole; the memory stays for the next one. */
	char  *answer;
	size_t answer_size;

	/* The request under way. */
	OutboxTargetState *host;
	void			  *delivery;
	int				   connect_timeout; /* ms */
	int				   timeout;
	int64			   begun_at; /* ms; 0: not launched yet */
	int64			   lookup_deadline;
	int				   lookup_took; /* ms */
	bool			   tried;		/* an address was not refused */
	bool			   connected;
	bool			   crowded; /* too many lookups are under way */
	bool			   whole_answer;
	size_t			   answer_len;
	int				   socket_errno;
	OutboxHead		   head;
	size_t			   body_bytes;
	const char		  *refused;		  /* the range, or PLAIN_HTTP */
	int64			   body_deadline; /* 0: not set yet */
	OutboxOutcome	   outcome;
	char			   errbuf[CURL_ERROR_SIZE];
};

/* http_settings.c: what the handles follow from; a new generation with each reload. */
typedef struct OutboxHttpConfig
{
	unsigned	   generation;
	bool		   use_proxy;
	bool		   have_http2;
	char		   proxy_host[256]; /* empty: an address */
	int			   proxy_port;
	OutboxNetworks networks;
} OutboxHttpConfig;

extern OutboxHttpConfig outbox_http_config;

/* The settings as they are when the worker starts, and after a reload. */
extern void outbox_http_first_settings(void);
extern void outbox_http_reload_settings(void);

/* s; without a reload, as long as the machine is up. */
extern long outbox_http_since_reload(void);

/* http_handle.c */
extern bool		   outbox_http_make_handle(OutboxTransfer *t);
extern const char *outbox_http_set_request(OutboxTransfer *t, const OutboxTarget *target,
										   const char *body, size_t body_len);
extern void outbox_http_fail(OutboxTransfer *t, OutboxFailure failure, const char *words,
							 const char *detail);
extern void outbox_http_explain(OutboxTransfer *t, CURLcode code);
extern bool outbox_http_set_timeouts(OutboxTransfer *t, int connect_timeout, int timeout);

/*
 * http_target.c.  A transfer enters its target's host with its start (NULL: out of
 * memory) and leaves it when it is out of libcurl and out of the host's list.
 * got_through: there is a connection that this request may use.
 * start_waiting: lets go who waited for the first of its target.
 */
extern void				  outbox_http_hosts_init(void);
extern void				  outbox_http_hosts_shutdown(void);
extern OutboxTargetState *outbox_http_enter_host(const void *key);
extern void				  outbox_http_leave_host(OutboxTransfer *t);
extern void				  outbox_http_got_through(OutboxTransfer *t);
extern bool				  outbox_http_hosts_are_ready(void);
extern void				  outbox_http_start_waiting(void (*launch)(OutboxTransfer *t));

/*
 * http_lookup.c.  look_up: READY: the handle has the addresses, or needs none.
 * WAITS: the transfer is on a list, until the step calls 'go_on' (look up again)
 * or 'fail' (the name has no address, or the transfer's lookup_deadline is over)
 * with it, off any list.  deadline: when the step wants to be called anyway.
 * forget: what was looked up before is not used any more.
 */
typedef enum OutboxLookupState
{
	OUTBOX_LOOKUP_READY,
	OUTBOX_LOOKUP_WAITS,
	OUTBOX_LOOKUP_CROWDED,	/* too many lookups are under way */
	OUTBOX_LOOKUP_NO_MEMORY /* or no thread */
} OutboxLookupState;

extern bool				 outbox_http_lookups_init(void);
extern OutboxLookupState outbox_http_look_up(OutboxTransfer *t, int64 now);
extern void	 outbox_http_lookups_step(int64 now, void (*go_on)(OutboxTransfer *t),
									  void (*fail)(OutboxTransfer *t, bool timed_out));
extern int64 outbox_http_lookups_deadline(void);
extern void	 outbox_http_forget_lookups(int64 now);

/* http_head.c */
extern OutboxHeadState outbox_head_line(OutboxHead *head, OutboxOutcome *outcome,
										const char *line, size_t len, int64 now);

/*
 * http_socket.c.  'events' asks epoll, without waiting; each event goes to
 * 'act' with the mask that curl_multi_socket_action takes.  True: there may be
 * more of them.
 */
extern int	outbox_http_fd(void);
extern bool outbox_http_sockets_init(CURLM *multi);
extern void outbox_http_sockets_shutdown(void);
extern void outbox_http_watch(int fd);
extern int	outbox_http_close_socket(void *arg, curl_socket_t fd);
extern bool outbox_http_events(void (*act)(int fd, int mask));

/* The descriptor that says that lookups have ended; its events set the flag. */
extern bool outbox_http_watch_lookups(int fd);
extern bool outbox_http_lookups_ended;

#endif /* OUTBOX_HTTP_INTERNAL_H */
