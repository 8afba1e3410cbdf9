/* SPDX-License-Identifier: Apache-2.0 */
/* Replies that need several packets, and a peer that does not read them. */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "proto/fdlist.h"
#include "proto/util/err.h"
#include "proto/weightd.pb-c.h"
#include "proto/wire.h"
#include "weightd/export.h"
#include "weightd/leftover.h"
#include "weightd/peer.h"
#include "weightd/registry.h"
#include "weightd/rpc-reply.h"
#include "weightd/service.h"
#include "weightd/source.h"

enum { N_ALLOCS = 200, REQUEST = 77, GENERATION = 5 };

static struct export_importer opaque_alone;

static struct peer *make_peer(int *ret_other)
{
	int pair[2];
	struct peer *p = NULL;

	assert_int_equal(
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	assert_int_equal(peer_new(pair[0], 1, &p), 0);
	assert_int_equal(p->pid, getpid());
	assert_true(peer_is_running(p->pidfd));
	*ret_other = pair[1];
	return p;
}

/* An allocation's descriptor is a file of its own, so that the receiver can tell them apart. */
static struct export *make_export(uint32_t n_allocs)
{
	struct export *e = NULL;
	char name[] = "/tmp/test-rpc-reply-XXXXXX";

	assert_int_equal(export_new(n_allocs, NULL, &e), 0);
	e->has_file_identity = true;
	e->file_identity[31] = 9;
	e->manifest_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (uint32_t i = 0; i < n_allocs; i++) {
		struct stat st;
		int fd = mkstemp(name);
		assert_true(fd >= 0);
		unlink(name);
		strcpy(name, "/tmp/test-rpc-reply-XXXXXX");
		assert_int_equal(fstat(fd, &st), 0);
		e->allocs[i].main.fd = fd;
		e->allocs[i].main.inode = st.st_ino;
		e->allocs[i].main.dev = st.st_dev;
		e->allocs[i].n_bytes = UINT64_MAX - i;
		e->allocs[i].buffer_bytes = UINT64_MAX - i;
		e->allocs[i].memory_type_index = 31;
	}
	return e;
}

static uint32_t check_packet(int sock, uint32_t at, bool *ret_more)
{
	static uint8_t data[WIRE_MAX_BYTES];
	struct fdlist fds = FDLIST_NULL;
	uint32_t n_bytes = 0;

	assert_int_equal(wire_recv(sock, data, &n_bytes, &fds, NULL), 0);
	Wd__Reply *reply = wd__reply__unpack(NULL, n_bytes, data);
	assert_non_null(reply);
	assert_int_equal(reply->id, REQUEST);
	assert_int_equal(reply->n_fds, fds.n);
	assert_int_equal(reply->body_case, WD__REPLY__BODY_ACQUIRED);
	const Wd__Acquired *m = reply->acquired;
	assert_int_equal(m->generation, GENERATION);
	assert_int_equal(m->has_manifest, at == 0);
	assert_int_equal(m->identity.len, 0);
	assert_int_equal(m->file_identity.len, at == 0 ? IDENTITY_BYTES : 0);
	if (at == 0)
		assert_int_equal(m->file_identity.data[31], 9);
	assert_int_equal(m->n_allocations + (at == 0), fds.n);
	for (size_t i = 0; i < m->n_allocations; i++) {
		struct stat st;
		assert_int_equal(m->allocations[i]->index, at);
		assert_int_equal(fstat(fds.fds[i + m->has_manifest], &st), 0);
		assert_int_equal(m->allocations[i]->inode, st.st_ino);
		assert_int_equal(m->allocations[i]->n_bytes, UINT64_MAX - at);
		at++;
	}
	*ret_more = m->more;
	fdlist_fini(&fds);
	wd__reply__free_unpacked(reply, NULL);
	return at;
}

static void test_acquired_in_packets(void **state)
{
	static const uint32_t counts[] = {1, FDLIST_MAX - 1, FDLIST_MAX, N_ALLOCS};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(counts); i++) {
		struct export *e = make_export(counts[i]);
		int sock;
		struct peer *p = make_peer(&sock);
		bool more = true;
		uint32_t at = 0;

		rpc_reply_acquired(p, REQUEST, GENERATION, e, &opaque_alone);
		assert_false(p->is_broken);
		while (more)
			at = check_packet(sock, at, &more);
		assert_int_equal(at, counts[i]);
		peer_free(p);
		close(sock);
		export_free(e);
	}
}

/* Dma-bufs to who imports them, up to where one was refused; the same memory's other one else. */
static void test_acquired_by_another_descriptor(void **state)
{
	enum { N = 6, REFUSED_FROM = 2 };
	static uint8_t data[WIRE_MAX_BYTES];
	struct export *e = make_export(N), *others = make_export(N);

	(void)state;
	for (uint32_t i = 0; i < N; i++) {
		e->allocs[i].main.handle = EXPORT_DMA_BUF;
		/* The last has no other. */
		if (i + 1 < N) {
			e->allocs[i].opaque = others->allocs[i].main;
			others->allocs[i].main.fd = -1;
		}
	}
	for (int round = 0; round < 3; round++) {
		struct export_importer importer;
		struct fdlist fds = FDLIST_NULL;
		uint32_t n_bytes = 0;
		int sock;
		struct peer *p = make_peer(&sock);
		struct export_offer offer;

		export_init_importer(
			&importer, 1u << EXPORT_OPAQUE_FD | (round ? 1u << EXPORT_DMA_BUF : 0));
		if (round == 2)
			importer.refused_from[EXPORT_DMA_BUF] = REFUSED_FROM;
		assert_int_equal(
			export_get_offer(e, N - 1, &importer, &offer), round == 1 ? 0 : -ENOTSUP);
		e->n_allocs = N - 1;
		rpc_reply_acquired(p, REQUEST, GENERATION, e, &importer);
		e->n_allocs = N;
		assert_int_equal(wire_recv(sock, data, &n_bytes, &fds, NULL), 0);
		Wd__Reply *reply = wd__reply__unpack(NULL, n_bytes, data);
		assert_non_null(reply);
		assert_int_equal(reply->acquired->n_allocations, N - 1);
		for (uint32_t i = 0; i < N - 1; i++) {
			const Wd__Allocation *m = reply->acquired->allocations[i];
			bool is_dma_buf = round == 1 || (round == 2 && i < REFUSED_FROM);
			const struct export_fd *f =
				is_dma_buf ? &e->allocs[i].main : &e->allocs[i].opaque;
			struct stat st;

			assert_int_equal(
				m->handle_type, is_dma_buf ? EXPORT_DMA_BUF : EXPORT_OPAQUE_FD);
			assert_int_equal(fstat(fds.fds[i + 1], &st), 0);
			assert_int_equal(st.st_ino, f->inode);
			assert_int_equal(m->inode, f->inode);
		}
		wd__reply__free_unpacked(reply, NULL);
		fdlist_fini(&fds);
		peer_free(p);
		close(sock);
	}
	export_free(others);
	export_free(e);
}

/* As many generations as there can be, each with all it can have, in one packet; for ls. */
static void test_models_in_a_packet(void **state)
{
	enum { N_DEVICES = SERVICE_MAX_DEVICES };
	static uint8_t data[WIRE_MAX_BYTES];
	struct loader *loaders[N_DEVICES] = {NULL};
	struct service_params params = {.loaders = loaders, .n_loaders = N_DEVICES};
	struct source_account account = {0};
	struct source *source = NULL;
	struct service *s = NULL;
	struct export *e = make_export(1);
	struct fdlist fds = FDLIST_NULL;
	struct err err = ERR_NULL;
	char name[REGISTRY_NAME_MAX + 1], path[SERVICE_MAX_PATH_BYTES];
	uint32_t n_bytes = 0;
	uint64_t id;
	int sock;

	(void)state;
	memset(e->architecture, 'a', sizeof(e->architecture) - 1);
	memset(e->format, 'f', sizeof(e->format) - 1);
	memset(path, 'p', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	e->n_parameters = e->device_bytes = e->manifest_bytes = e->n_unmet_bytes = UINT64_MAX;
	e->n_tensors = UINT32_MAX;
	assert_int_equal(source_new(e->allocs[0].main.fd, false, &account, &err, &source), 0);
	assert_int_equal(service_new(&params, &s), 0);
	for (uint32_t i = 0; i < REGISTRY_MAX_GENERATIONS; i++) {
		struct service_generation *g = calloc(1, sizeof(*g));

		assert_non_null(g);
		g->path = strdup(path);
		g->file_bytes = g->loaded_bytes = g->load_ns = UINT64_MAX;
		g->source = source_ref(source);
		/* The second generation is for the first device and those of others. */
		for (uint32_t k = 0; k <= N_DEVICES; k++)
			if (i != 1 || k == 0 || k == N_DEVICES)
				g->residencies[k].export = e;
		snprintf(name, sizeof(name), "%0*u", REGISTRY_NAME_MAX, i);
		assert_int_equal(
			registry_load(service_get_registry(s), name, false, g, &err, &id), 0);
	}
	struct peer *p = make_peer(&sock);
	rpc_reply_models(p, REQUEST, s);
	assert_false(p->is_broken);
	assert_int_equal(wire_recv(sock, data, &n_bytes, &fds, NULL), 0);
	Wd__Reply *reply = wd__reply__unpack(NULL, n_bytes, data);
	assert_non_null(reply);
	assert_int_equal(reply->models->n_models, REGISTRY_MAX_GENERATIONS);
	assert_int_equal(
		reply->models->models[0]->generations[0]->residency, (1u << (N_DEVICES + 1)) - 1);
	assert_int_equal(reply->models->models[1]->generations[0]->residency, 3);
	wd__reply__free_unpacked(reply, NULL);
	peer_free(p);
	close(sock);
	service_free(s);
	source_unref(source);
	export_free(e);
}

/* Nobody reads: the queue grows to its cap, then the peer is to go. */
static void test_queue_is_bounded(void **state)
{
	int sock;
	struct peer *p = make_peer(&sock);
	char text[400];
	struct rpc_reply_event event = {
		.kind = RPC_REPLY_FAILED, .model = "m", .generation = 1, .text = text};
	unsigned n = 0;

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	while (!p->is_broken) {
		rpc_reply_event(p, &event);
		assert_true(p->n_queue_packets <= PEER_MAX_QUEUE_PACKETS);
		assert_true(p->n_queue_bytes <= PEER_MAX_QUEUE_BYTES);
		assert_true(++n < 4 * PEER_MAX_QUEUE_PACKETS);
	}
	assert_non_null(strstr(p->broken.text, "does not read"));
	assert_true(n > PEER_MAX_QUEUE_PACKETS);
	peer_free(p);
	close(sock);
}

/* What waits goes out in order once there is room. */
static void test_queue_goes_on(void **state)
{
	static uint8_t data[WIRE_MAX_BYTES];
	enum { N = 2000 };
	int sock;
	struct peer *p = make_peer(&sock);

	(void)state;
	for (uint64_t i = 1; i <= N; i++)
		rpc_reply_done(p, i, i);
	assert_true(p->n_queue_packets > 0);
	for (uint64_t i = 1; i <= N; i++) {
		struct fdlist fds = FDLIST_NULL;
		uint32_t n_bytes = 0;
		int rc = wire_recv(sock, data, &n_bytes, &fds, NULL);
		if (rc == WIRE_AGAIN) {
			peer_flush(p);
			rc = wire_recv(sock, data, &n_bytes, &fds, NULL);
		}
		assert_int_equal(rc, 0);
		Wd__Reply *reply = wd__reply__unpack(NULL, n_bytes, data);
		assert_non_null(reply);
		assert_int_equal(reply->id, i);
		wd__reply__free_unpacked(reply, NULL);
	}
	assert_int_equal(p->n_queue_packets, 0);
	assert_int_equal(p->n_queue_bytes, 0);
	close(sock);
	/* The other end is gone: found out at the next send. */
	rpc_reply_done(p, N, N);
	assert_true(p->is_broken);
	peer_free(p);
}

/* A process that does not read gets no more descriptors than its share, and then all in order. */
static void test_unread_fds_are_bounded(void **state)
{
	enum { N = 20, N_FDS = 50 };
	static uint8_t data[WIRE_MAX_BYTES];
	struct export *e = make_export(N_FDS - 1);
	int sock;
	struct peer *p = make_peer(&sock);

	(void)state;
	for (uint64_t i = 1; i <= N; i++)
		rpc_reply_acquired(p, i, GENERATION, e, &opaque_alone);
	assert_false(p->is_broken);
	assert_in_range(p->n_unread_fds, N_FDS, PEER_MAX_UNREAD_FDS);
	assert_true(p->n_queue_packets >= N - PEER_MAX_UNREAD_FDS / N_FDS);
	for (uint64_t i = 1; i <= N; i++) {
		struct fdlist fds = FDLIST_NULL;
		uint32_t n_bytes = 0;
		int rc = wire_recv(sock, data, &n_bytes, &fds, NULL);
		if (rc == WIRE_AGAIN) {
			peer_flush(p);
			rc = wire_recv(sock, data, &n_bytes, &fds, NULL);
		}
		assert_int_equal(rc, 0);
		assert_int_equal(fds.n, N_FDS);
		fdlist_fini(&fds);
	}
	assert_int_equal(p->n_queue_packets, 0);
	peer_free(p);
	close(sock);
	export_free(e);
}

/* Borrowed descriptors are the loader's again once the leases end: nothing is sent behind that. */
/* What a connection left unread when it was dropped is its process's share until it is read. */
static void test_unread_fds_of_the_dropped(void **state)
{
	enum { N_FDS = 50 };
	static uint8_t data[WIRE_MAX_BYTES];
	struct export *e = make_export(N_FDS - 1);
	struct leftover *leftover = NULL;
	int dropped, sock, n_read = 0;
	struct peer *p = make_peer(&dropped), *next = make_peer(&sock);
	struct fdlist fds = FDLIST_NULL;
	uint32_t n_bytes;

	(void)state;
	assert_int_equal(leftover_new(&leftover), 0);
	p->leftover = leftover;
	next->leftover = leftover;
	for (uint64_t i = 1; i <= 20; i++)
		rpc_reply_acquired(p, i, GENERATION, e, 0);
	uint32_t n_unread = p->n_unread_fds;
	assert_true(n_unread + N_FDS > PEER_MAX_UNREAD_FDS);
	peer_free(p);
	assert_int_equal(leftover_count(leftover, next), n_unread);
	rpc_reply_acquired(next, 1, GENERATION, e, 0);
	assert_int_equal(next->n_queue_packets, 1);
	leftover_prune(leftover);
	assert_int_equal(leftover_count(leftover, next), n_unread);
	/* It still has all that was sent, and then the end. */
	while (wire_recv(dropped, data, &n_bytes, &fds, NULL) == 0) {
		n_read += (int)fds.n;
		fdlist_fini(&fds);
	}
	assert_int_equal(n_read, n_unread);
	assert_int_equal(wire_recv(dropped, data, &n_bytes, &fds, NULL), WIRE_END);
	peer_flush(next);
	assert_int_equal(next->n_queue_packets, 0);
	assert_int_equal(leftover_count(leftover, next), 0);
	/* Closed unread is gone as well; nothing of another process counts. */
	next->pid = getppid();
	next->process = UINT64_MAX;
	peer_free(next);
	p = make_peer(&n_read);
	assert_int_equal(leftover_count(leftover, p), 0);
	peer_free(p);
	close(n_read);
	close(sock);
	leftover_prune(leftover);
	leftover_free(leftover);
	close(dropped);
	export_free(e);
}

static void test_finish(void **state)
{
	static uint8_t data[WIRE_MAX_BYTES];
	struct export *e = make_export(40);
	int sock;
	struct peer *p = make_peer(&sock);
	struct fdlist fds = FDLIST_NULL;
	uint32_t n_bytes;

	(void)state;
	for (uint64_t i = 1; i <= 20; i++)
		rpc_reply_acquired(p, i, GENERATION, e, &opaque_alone);
	assert_true(p->n_queue_packets > 0);
	peer_finish(p);
	assert_int_equal(p->n_queue_packets, 0);
	export_free(e);
	while (wire_recv(sock, data, &n_bytes, &fds, NULL) == 0)
		fdlist_fini(&fds);
	peer_free(p);
	assert_int_equal(wire_recv(sock, data, &n_bytes, &fds, NULL), WIRE_END);
	close(sock);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_acquired_in_packets),
		CASE(test_acquired_by_another_descriptor),
		CASE(test_models_in_a_packet),
		CASE(test_queue_is_bounded),
		CASE(test_queue_goes_on),
		CASE(test_unread_fds_are_bounded),
		CASE(test_unread_fds_of_the_dropped),
		CASE(test_finish),
	};

	export_init_importer(&opaque_alone, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
