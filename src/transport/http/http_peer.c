/*
 * http_peer.c
 *	  Owns how much a peer may make libcurl and OpenSSL do.
 *
 * Some bytes of a peer never reach a callback of libcurl: tickets of TLS, frames of
 * HTTP/2, extensions of chunks.  libcurl and OpenSSL read on until something else
 * comes, so a peer that sends nothing else would be read for ever.  It is bounded where
 * the bytes come in.
 *
 *	  in one call		OpenSSL reports each record and each message of a handshake
 *						while it reads.  A connection with too many of them is ended
 *						from inside the call.
 *	  in one request	a request has a handful of events of its socket.  From then on,
 *						the kernel is asked how many bytes the socket has received.
 *	  without an end	libcurl waits for a socket of HTTP/2 to take bytes, also while the
 *						peer takes none.  Such a socket is ready all the time.
 *	  in a handshake	algorithms that cost the client much CPU are neither offered nor
 *						accepted.
 *	  in memory			OpenSSL keeps the certificates of a connection until it is closed,
 *						and the names of authorities that a client's should come from.
 *						They count as memory of connections.
 *
 * The sink for AWS uses the same functions, see OutboxServices.  They neither throw nor
 * use palloc, because libcurl calls them.
 */
#include "base/memory.h"
#include "transport/http/http_internal.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <stdlib.h>

/*
 * Bytes that a connection may bring in one call, and in one request.  An answer has at
 * most a few hundred kB that are read.
 */
#define PEER_BYTES_MAX (2 * 1024 * 1024)
#define RECORD_COST 256	  /* bytes that a record of TLS counts beside its own */
#define MESSAGES_MAX 256  /* of handshakes, tickets included, in a connection's life */
#define SIGNATURE_COST 32 /* messages that a request for a signature counts */
#define TICKET_MAX (16 * 1024) /* bytes */
#define EVENTS_UNWATCHED 8	   /* of a socket, in one request */
#define WRITES_UNWATCHED 4	   /* events that a socket takes bytes, and no other */
#define RSA_BITS_MAX 8192
#define EXPONENT_BITS_MAX 64 /* OpenSSL's own limit for keys above 3,072 bits */
#define CURVE_BITS_MAX 521

/*
 * Bytes of a peer's certificates, and of its request for one of ours, which may list
 * authorities.  KEPT_MAX is for each of the two.  Usual ones are a part of the bytes that a
 * connection counts itself.  In memory they take up to so many times as much: 4 bytes, an
 * empty name of an authority, become structures of 186 bytes, and 9 bytes, a place of a
 * list of revocations, 290.
 */
#define KEPT_MAX (24 * 1024)
#define KEPT_USUAL (4 * 1024)
#define KEPT_COST 48

static const char too_much[] = "the receiver sent too much that is no part of an answer";
const char outbox_http_large_key[] = "the key of a certificate costs too much to verify";
static const char unwanted_protocol[] =
	"the receiver speaks a protocol that was not offered";

/* The TLS state of a connection.  OpenSSL frees it with its SSL_CTX. */
typedef struct TlsPeer
{
	const char	  **why;   /* NULL after the handshake */
	bool			two;   /* HTTP/2 was offered */
	bool			ended; /* a bound was exceeded */
	unsigned		call;
	size_t			bytes; /* in that call */
	int				messages;
	int				fd;
	OutboxHttpHolds holds;		  /* NULL: of another transport */
	size_t			certificates; /* bytes */
	size_t			request;	  /* bytes of the longest one for a certificate of ours */
	size_t			held;		  /* bytes of memory that are counted for both */
} TlsPeer;

/* Bytes that are held for other transports, and the most of a connection without them. */
static size_t others_bytes;
#define OF_OTHERS ((size_t) 500 * 1024)

/* The counters of a socket, since its last request has ended. */
typedef struct SocketPeer
{
	int	   events;
	int	   writes;
	uint64 received; /* bytes at the first look */
	uint64 written;	 /* bytes at the last look */
} SocketPeer;

static unsigned	   call; /* into libcurl */
static const char *ended_now;
static SocketPeer *sockets;
static int		   nsockets;

static int (*usual_security)(const SSL *, const SSL_CTX *, int, int, int, void *, void *);

/* What is counted is held until the socket is closed. */
static void
count_kept(TlsPeer *peer)
{
	size_t len = peer->certificates + peer->request;
	size_t held = len > KEPT_USUAL ? (len - KEPT_USUAL) * KEPT_COST : 0;

	if (peer->holds == NULL)
	{
		outbox_memory_account(&others_bytes, others_bytes + held - peer->held);
		outbox_memory_connections += held - peer->held;
	}
	else
		peer->holds(peer->fd, held - peer->held);
	peer->held = held;
}

/*
 * One call, and one request
 */

/*
 * Ends a connection from inside a call: OpenSSL drops received data, and reads no
 * more.
 */
static void
end_connection(TlsPeer *peer, SSL *ssl, const char *why)
{
	if (peer->why)
		*peer->why = why;
	peer->ended = true;
	ended_now = why;
	SSL_set_shutdown(ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
}

/*
 * A connection keeps its last ticket, which it never uses.  OpenSSL before 3.2 refuses a
 * larger one itself.
 */
static int
message_cost(int message, size_t len)
{
	if (message == SSL3_MT_CERTIFICATE_REQUEST)
		return SIGNATURE_COST;
	return message == SSL3_MT_NEWSESSION_TICKET && len > TICKET_MAX ? MESSAGES_MAX + 1 :
																	  1;
}

/* OpenSSL calls this for each record and message of a handshake, while it reads. */
static void
on_message(int sent, int version, int type, const void *data, size_t len, SSL *ssl,
		   void *arg)
{
	TlsPeer				*peer = arg;
	const unsigned char *header = data;

	if (sent && type == SSL3_RT_HANDSHAKE && len > 0 && header[0] == SSL3_MT_FINISHED)
		peer->why = NULL;
	if (sent || peer->ended)
		return;
	if (peer->call != call)
	{
		peer->call = call;
		peer->bytes = 0;
	}
	if (type == SSL3_RT_HEADER && len >= SSL3_RT_HEADER_LENGTH)
		peer->bytes += RECORD_COST + (header[3] << 8 | header[4]);
	else if (type == SSL3_RT_HANDSHAKE && len > 0)
	{
		peer->messages += message_cost(header[0], len);
		if (header[0] == SSL3_MT_CERTIFICATE_REQUEST)
		{
			peer->request = Max(peer->request, len);
			count_kept(peer);
		}
	}
	if (peer->bytes > PEER_BYTES_MAX || peer->messages > MESSAGES_MAX)
		end_connection(peer, ssl, too_much);
}

/* Returns false if the kernel does not count bytes. */
static bool
read_info(int fd, struct tcp_info *info)
{
	socklen_t len = sizeof(*info);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0 &&
		len >= offsetof(struct tcp_info, tcpi_bytes_sent) + sizeof(info->tcpi_bytes_sent);
}

void
outbox_http_peer_rests(int fd)
{
	if (fd < nsockets)
		sockets[fd].events = sockets[fd].writes = 0;
}

const char *
outbox_http_peer_event(int fd)
{
	const struct linger reset = {.l_onoff = 1};
	SocketPeer		   *s;
	struct tcp_info		info;

	call++;
	ended_now = NULL;
	if (fd >= nsockets)
	{
		int			n = Max(nsockets * 2, fd + 64);
		SocketPeer *bigger = realloc(sockets, n * sizeof(SocketPeer));

		if (bigger == NULL)
			return NULL;
		memset(bigger + nsockets, 0, (n - nsockets) * sizeof(SocketPeer));
		sockets = bigger;
		nsockets = n;
	}
	s = &sockets[fd];
	if (++s->events < EVENTS_UNWATCHED || !read_info(fd, &info))
		return NULL;
	if (s->events == EVENTS_UNWATCHED)
		s->received = info.tcpi_bytes_received;
	if (info.tcpi_bytes_received - s->received <= PEER_BYTES_MAX)
		return NULL;

	/*
	 * A connection that libcurl then closes is reset.  Otherwise the peer would wait
	 * to send the rest.
	 */
	(void) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	shutdown(fd, SHUT_RDWR);
	return too_much;
}

bool
outbox_http_peer_takes_nothing(int fd)
{
	struct tcp_info info;
	uint64			written;
	bool			same;

	if (fd >= nsockets || ++sockets[fd].writes < WRITES_UNWATCHED ||
		!read_info(fd, &info))
		return false;
	written = info.tcpi_bytes_sent + info.tcpi_notsent_bytes;
	same = sockets[fd].writes > WRITES_UNWATCHED && written == sockets[fd].written;
	sockets[fd].written = written;
	return same;
}

const char *
outbox_http_peer_ended(void)
{
	return ended_now;
}

/*
 * The handshake
 */

/*
 * OpenSSL asks this for all that it could offer or accept.  Finite-field groups take up
 * to a second of CPU, and a peer may choose them.  So may a peer choose slow curves.
 */
static int
is_cheap(const SSL *ssl, const SSL_CTX *ctx, int op, int bits, int nid, void *other,
		 void *arg)
{
	const unsigned char *group = other;

	switch (op)
	{
		case SSL_SECOP_TMP_DH:
			return 0;
		case SSL_SECOP_CIPHER_SUPPORTED:
		case SSL_SECOP_CIPHER_SHARED:
		case SSL_SECOP_CIPHER_CHECK:
			if (other && SSL_CIPHER_get_kx_nid(other) == NID_kx_dhe)
				return 0;
			break;
		case SSL_SECOP_CURVE_SUPPORTED:
		case SSL_SECOP_CURVE_SHARED:
		case SSL_SECOP_CURVE_CHECK:
			/*
			 * TLS's numbers: P-256, P-384, P-521, X25519, X448, and the hybrids with
			 * ML-KEM
			 */
			switch (group ? group[0] << 8 | group[1] : 0)
			{
				case 23:
				case 24:
				case 25:
				case 29:
				case 30:
				case 0x11EB:
				case 0x11EC:
				case 0x11ED:
					break;
				default:
					return 0;
			}
			break;
	}
	return usual_security(ssl, ctx, op, bits, nid, other, arg);
}

/* With a long public exponent each of up to a hundred signatures costs 6 ms. */
static bool
exponent_is_short(EVP_PKEY *key)
{
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
	BIGNUM *e = NULL;
	bool	is_short = EVP_PKEY_get_bn_param(key, "e", &e) &&
		BN_num_bits(e) <= EXPONENT_BITS_MAX;

	BN_free(e);
	return is_short;
#else
	const BIGNUM *e = NULL;

	RSA_get0_key(EVP_PKEY_get0_RSA(key), NULL, &e, NULL);
	return BN_num_bits(e) <= EXPONENT_BITS_MAX;
#endif
}

bool
outbox_http_key_is_cheap(EVP_PKEY *key)
{
	if (key == NULL)
		return true; /* nothing can be verified with it */
	switch (EVP_PKEY_base_id(key))
	{
		case EVP_PKEY_RSA:
		case EVP_PKEY_RSA_PSS:
			return EVP_PKEY_bits(key) <= RSA_BITS_MAX && exponent_is_short(key);
		case EVP_PKEY_EC:
			return EVP_PKEY_bits(key) <= CURVE_BITS_MAX;
		case EVP_PKEY_DSA:
		case EVP_PKEY_DH:
		case EVP_PKEY_DHX:
			return false;
		default:
			return true;
	}
}

/* 'own' is among the others as well. */
static size_t
size_of(X509 *own, STACK_OF(X509) * others)
{
	size_t len = own ? i2d_X509(own, NULL) : 0;

	for (int i = 0; i < sk_X509_num(others); i++)
		if (sk_X509_value(others, i) != own)
			len += i2d_X509(sk_X509_value(others, i), NULL);
	return len;
}

/* Takes the place of OpenSSL's verification, and calls it if no key is too large. */
static int
verify(X509_STORE_CTX *ctx, void *arg)
{
	TlsPeer *peer = arg;
	SSL		*ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
	STACK_OF(X509) *others = X509_STORE_CTX_get0_untrusted(ctx);
	X509				*own = X509_STORE_CTX_get0_cert(ctx);
	const unsigned char *protocol = NULL;
	unsigned			 len = 0;
	const char			*why = NULL;

	/* OpenSSL and libcurl would take a protocol that was not offered. */
	SSL_get0_alpn_selected(ssl, &protocol, &len);
	if (!peer->two && len > 0 && !(len > 5 && memcmp(protocol, "http/", 5) == 0))
		why = unwanted_protocol;
	if (own && !outbox_http_key_is_cheap(X509_get0_pubkey(own)))
		why = outbox_http_large_key;
	for (int i = 0; i < sk_X509_num(others); i++)
		if (!outbox_http_key_is_cheap(X509_get0_pubkey(sk_X509_value(others, i))))
			why = outbox_http_large_key;
	peer->certificates = size_of(own, others);
	count_kept(peer);
	if (why == NULL)
		return X509_verify_cert(ctx);
	if (peer->why)
		*peer->why = why;
	X509_STORE_CTX_set_error(ctx, X509_V_ERR_CERT_REJECTED);
	return 0;
}

static void
free_peer(void *parent, void *peer, CRYPTO_EX_DATA *all, int index, long argl, void *argp)
{
	TlsPeer *p = peer;

	(void) parent, (void) all, (void) index, (void) argl, (void) argp;
	if (p && p->holds == NULL)
	{
		outbox_memory_account(&others_bytes, others_bytes - p->held);
		outbox_memory_connections -= OF_OTHERS + p->held;
	}
	free(p);
}

/* Another TLS library, or another OpenSSL than ours, has other structures. */
bool
outbox_http_can_bound_tls(void)
{
	const char *theirs = curl_version_info(CURLVERSION_NOW)->ssl_version;
	const char *ours = OpenSSL_version(OPENSSL_VERSION);
	char		name[16];

	snprintf(name, sizeof(name), "OpenSSL/%d.", (int) (OPENSSL_VERSION_NUMBER >> 28));
	return theirs && strncmp(theirs, name, strlen(name)) == 0 &&
		strncmp(ours, "OpenSSL ", 8) == 0;
}

bool
outbox_http_bound_tls(void *ssl_ctx, int fd, OutboxHttpHolds holds, bool two,
					  const char **why)
{
	static int index = -1;
	SSL_CTX	  *ctx = ssl_ctx;
	TlsPeer	  *peer = calloc(1, sizeof(TlsPeer));

	if (index < 0)
		index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, free_peer);
	if (peer == NULL || index < 0 || !SSL_CTX_set_ex_data(ctx, index, peer))
	{
		free(peer);
		return false;
	}
	if (holds == NULL)
		outbox_memory_connections += OF_OTHERS;
	peer->why = why;
	peer->fd = fd;
	peer->holds = holds;
	peer->two = two;
	peer->call = call;
	SSL_CTX_set_msg_callback(ctx, on_message);
	SSL_CTX_set_msg_callback_arg(ctx, peer);
	usual_security = SSL_CTX_get_security_callback(ctx);
	SSL_CTX_set_security_callback(ctx, is_cheap);
	SSL_CTX_set_cert_verify_callback(ctx, verify, peer);
	SSL_CTX_set_max_cert_list(ctx, KEPT_MAX);
	SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION);
#ifdef SSL_OP_NO_RX_CERTIFICATE_COMPRESSION
	SSL_CTX_set_options(ctx, SSL_OP_NO_RX_CERTIFICATE_COMPRESSION);
#endif
	return true;
}

static bool
bound_tls(void *ssl_ctx, bool two, const char **why)
{
	return outbox_http_bound_tls(ssl_ctx, -1, NULL, two, why);
}

void
outbox_http_peer_services(OutboxServices *services)
{
	services->bound_tls = outbox_http_can_bound_tls() ? bound_tls : NULL;
	services->peer_event = outbox_http_peer_event;
	services->peer_ended = outbox_http_peer_ended;
	services->peer_rests = outbox_http_peer_rests;
}
