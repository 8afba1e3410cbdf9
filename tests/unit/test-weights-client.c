/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "proto/manifest.h"
#include "tests/unit/socket-dir.h"
#include "tests/unit/weights-peer.h"

static int make_memfd(uint64_t n_bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)n_bytes), 0);
	return fd;
}

static void says_hello(void **state)
{
	struct weights_client *c = weights_peer_client();
	const struct weights_client_device *d = weights_client_get_device(c);

	(void)state;
	assert_string_equal(d->name, "Imaginary");
	assert_memory_equal(d->uuid, weights_peer_uuid, 16);
	assert_true(d->software);
	assert_int_equal(d->n_heaps, 1);
	assert_int_equal(d->heaps[0].n_bytes, 1000);
	assert_true(weights_client_get_fd(c) >= 0);
	weights_peer_close(c);
	assert_null(weights_client_free(NULL));
}

static void passes_on_a_refused_hello(void **state)
{
	struct weights_client *c = NULL;
	struct err e = ERR_NULL;
	int fd;

	(void)state;
	weights_peer_open(&fd);
	weights_peer_error(1, EPROTO, "protocol: expected 9, found 1");
	assert_int_equal(weights_client_new_connected(fd, WEIGHTS_CLIENT_CONTROL, &e, &c), -EPROTO);
	assert_string_equal(e.text, "protocol: expected 9, found 1");
	close(weights_peer);

	weights_peer_open(&fd);
	weights_peer_welcome(WIRE_PROTOCOL + 1);
	assert_int_equal(weights_client_new_connected(fd, WEIGHTS_CLIENT_CONTROL, &e, &c), -EPROTO);
	assert_non_null(strstr(e.text, "protocol: expected 1, found 2"));
	close(weights_peer);

	weights_peer_open(&fd);
	close(weights_peer);
	assert_int_equal(
		weights_client_new_connected(fd, WEIGHTS_CLIENT_CONTROL, &e, &c), -ECONNRESET);
	assert_null(c);
}

/* It was let go before it could say Hello, and still knows why. */
static void passes_on_a_refused_connection(void **state)
{
	struct weights_client *c = NULL;
	struct err e = ERR_NULL;
	int fd;

	(void)state;
	weights_peer_open(&fd);
	weights_peer_done(7, 1);
	weights_peer_error(0, EACCES, "not for uid 7");
	close(weights_peer);
	assert_int_equal(weights_client_new_connected(fd, WEIGHTS_CLIENT_CONTROL, &e, &c), -EACCES);
	assert_string_equal(e.text, "not for uid 7");
}

static void refuses_a_bad_device(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++) {
		Wd__Device d = weights_peer_device();
		Wd__Welcome w = WD__WELCOME__INIT;
		Wd__Heap *heaps[17];
		char name[300];
		struct weights_client *c = NULL;
		struct err e = ERR_NULL;
		int fd;

		memset(name, 'n', sizeof(name) - 1);
		name[sizeof(name) - 1] = '\0';
		for (int k = 0; k < 17; k++)
			heaps[k] = d.heaps[0];
		if (i == 0)
			d.uuid.len = 15;
		if (i == 1)
			d.driver_uuid.len = 0;
		if (i == 2)
			d.name = name;
		if (i == 3) {
			d.n_heaps = 17;
			d.heaps = heaps;
		}
		w.protocol = WIRE_PROTOCOL;
		w.device = i == 4 ? NULL : &d;
		weights_peer_open(&fd);
		weights_peer_reply(1, WD__REPLY__BODY_WELCOME, &w, NULL);
		assert_int_equal(
			weights_client_new_connected(fd, WEIGHTS_CLIENT_WORKER, &e, &c), -EPROTO);
		assert_non_null(strstr(e.text, "device"));
		close(weights_peer);
	}
}

/* One packet of a lease and what may be wrong with it. */
struct lease_packet {
	uint64_t id;
	uint64_t generation;
	uint32_t first_index;
	uint32_t n_allocs;
	bool has_manifest;
	bool more;
	uint32_t n_identity; /* bytes */
	uint32_t n_file;
	int n_fds_more;        /* descriptors beyond those that belong */
	int n_fds_said_more;   /* what n_fds claims beyond those sent */
	int file_bytes_less;   /* the file is shorter than said */
	uint32_t handle_type;  /* 0: memfd */
	uint64_t buffer_bytes; /* 0: 4096 */
	uint32_t memory_type;
	uint32_t placement; /* 0: staged */
	uint64_t file_offset;
	int n_bytes_less; /* the window is shorter than a page */
	bool no_fds;
};

static uint8_t lease_digest[] = "fedcba9876543210fedcba9876543210";

static void send_lease(const struct lease_packet *p)
{
	Wd__Allocation rows[8];
	Wd__Allocation *pointers[8];
	Wd__Acquired a = WD__ACQUIRED__INIT;
	Wd__Reply r = WD__REPLY__INIT;
	struct fdlist fds = FDLIST_NULL;

	if (p->has_manifest)
		assert_int_equal(fdlist_add(&fds, make_memfd(100)), 0);
	for (uint32_t i = 0; i < p->n_allocs; i++) {
		wd__allocation__init(&rows[i]);
		rows[i].index = p->first_index + i;
		rows[i].n_bytes = (uint64_t)(4096 - p->n_bytes_less);
		rows[i].file_offset = p->file_offset;
		rows[i].writable = p->file_offset != 0;
		rows[i].buffer_bytes = p->buffer_bytes ? p->buffer_bytes : 4096;
		rows[i].handle_type = p->handle_type ? (Wd__HandleType)p->handle_type
						     : WD__HANDLE_TYPE__HANDLE_TYPE_MEMFD;
		rows[i].memory_type_index = p->memory_type;
		rows[i].placement = p->placement ? (Wd__Placement)p->placement
						 : WD__PLACEMENT__PLACEMENT_STAGED;
		pointers[i] = &rows[i];
		if (p->no_fds)
			continue;
		assert_int_equal(
			fdlist_add(&fds, make_memfd((uint64_t)(4096 - p->file_bytes_less))), 0);
	}
	for (int i = 0; i < p->n_fds_more; i++)
		assert_int_equal(fdlist_add(&fds, make_memfd(1)), 0);
	if (p->n_fds_more < 0) {
		close(fdlist_take(&fds, fds.n - 1));
		fds.n--;
	}
	a.generation = p->generation;
	a.identity = (ProtobufCBinaryData){.len = p->n_identity, .data = lease_digest};
	a.file_identity = (ProtobufCBinaryData){.len = p->n_file, .data = lease_digest};
	a.has_manifest = p->has_manifest;
	a.n_allocations = p->n_allocs;
	a.allocations = pointers;
	a.more = p->more;
	r.id = p->id;
	r.n_fds = (uint32_t)((int)fds.n + p->n_fds_said_more);
	r.body_case = WD__REPLY__BODY_ACQUIRED;
	r.acquired = &a;
	assert_int_equal(wire_send(weights_peer, weights_peer_packet,
				 (uint32_t)wd__reply__pack(&r, weights_peer_packet), &fds),
		0);
	fdlist_fini(&fds);
}

static void acquires_over_several_packets(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct weights_client_acquired a;
	struct err e = ERR_NULL;
	struct fdlist fds;

	(void)state;
	send_lease(&(struct lease_packet){.id = 2,
		.generation = 5,
		.n_allocs = 2,
		.n_identity = 32,
		.has_manifest = true,
		.more = true});
	send_lease(&(struct lease_packet){
		.id = 2, .generation = 5, .first_index = 2, .n_allocs = 1, .more = false});
	assert_int_equal(
		weights_client_acquire(c, "atlas", weights_peer_uuid, weights_peer_uuid, &e, &a),
		0);
	assert_int_equal(a.generation, 5);
	assert_int_equal(a.n_allocs, 3);
	assert_true(a.contents.has_identity && !a.contents.has_file);
	assert_memory_equal(a.contents.identity, lease_digest, 32);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(a.allocs[i].index, i);
		assert_int_equal(a.allocs[i].placement, MANIFEST_PLACEMENT_STAGED);
		assert_int_equal(lseek(a.allocs[i].fd, 0, SEEK_END), 4096);
	}
	assert_int_equal(lseek(a.manifest_fd, 0, SEEK_END), 100);

	Wd__Request *r = weights_peer_take(&fds);
	assert_string_equal(r->acquire->model, "atlas");
	assert_int_equal(r->acquire->device_uuid.len, 16);
	assert_memory_equal(r->acquire->driver_uuid.data, weights_peer_uuid, 16);
	wd__request__free_unpacked(r, NULL);

	/* One descriptor is taken; fini closes the others (the case counts). */
	close(TAKE_FD(a.allocs[1].fd));
	weights_client_acquired_fini(&a);
	weights_peer_close(c);
}

static void expect_lease_refused(
	const struct lease_packet *first, const struct lease_packet *second, const char *words)
{
	struct weights_client *c = weights_peer_client();
	struct weights_client_acquired a = {.manifest_fd = -1};
	struct err e = ERR_NULL;

	send_lease(first);
	if (first->more)
		send_lease(second);
	assert_int_equal(
		weights_client_acquire(c, "m", weights_peer_uuid, weights_peer_uuid, &e, &a),
		-EPROTO);
	assert_int_equal(a.manifest_fd, -1);
	if (!strstr(e.text, words))
		fail_msg("expected \"%s\" in \"%s\"", words, e.text);
	weights_peer_close(c);
}

/* A valid packet or, with first.more, two; then `change`, then a refusal with `words`. */
#define REFUSES(words, change)                                                          \
	do {                                                                            \
		struct lease_packet first = {                                           \
			.id = 2, .generation = 5, .n_allocs = 2, .has_manifest = true}; \
		struct lease_packet second = {                                          \
			.id = 2, .generation = 5, .first_index = 2, .n_allocs = 1};     \
		change;                                                                 \
		expect_lease_refused(&first, &second, words);                           \
	} while (0)

static void refuses_a_broken_lease(void **state)
{
	(void)state;
	REFUSES("expected id 2, found 3", first.id = 3);
	REFUSES("expected id 2, found 1", first.id = 1);
	REFUSES("expected an event", first.id = 0);
	REFUSES("descriptors: expected 4, found 3", first.n_fds_said_more = 1);
	REFUSES("descriptors: expected 2, found 3", first.n_fds_said_more = -1);
	REFUSES("a descriptor an allocation", first.n_fds_more = 1);
	REFUSES("a descriptor an allocation", first.n_fds_more = -1);
	REFUSES("manifest once", first.has_manifest = false);
	REFUSES("generation", first.generation = 0);
	REFUSES("index 0, found 1", first.first_index = 1);
	REFUSES("without allocations", first.n_allocs = 0);
	REFUSES("a file of 4096 bytes, found 4095", first.file_bytes_less = 1);
	REFUSES("handle type", first.handle_type = 5);
	REFUSES("buffer", first.buffer_bytes = 4097);
	REFUSES("whole pages", first.file_offset = 100);
	REFUSES("whole pages", (first.n_bytes_less = 1, first.buffer_bytes = 100));
	REFUSES("whole pages", first.file_offset = UINT64_MAX - 4095);
	REFUSES("a file of 8192 bytes, found 4096", first.file_offset = 4096);
	REFUSES("a file of 4096 bytes, found 4000",
		(first.handle_type = WEIGHTS_CLIENT_FILE, first.file_bytes_less = 96));
	REFUSES("a file of 4097 bytes, found 4096",
		(first.handle_type = WEIGHTS_CLIENT_FILE, first.file_offset = 4096,
			first.buffer_bytes = 1));
	REFUSES("memory type", first.memory_type = 32);
	REFUSES("placement", first.placement = 5);
}

/* Windows of a file may end inside its last page; a dma-buf has no size to ask for. */
static void accepts_other_handles(void **state)
{
	static const struct lease_packet packets[] = {
		{.id = 2,
			.generation = 5,
			.n_allocs = 1,
			.has_manifest = true,
			.handle_type = WEIGHTS_CLIENT_FILE,
			.placement = MANIFEST_PLACEMENT_PINNED,
			.buffer_bytes = 4000,
			.file_bytes_less = 96},
		{.id = 2,
			.generation = 5,
			.n_allocs = 1,
			.has_manifest = true,
			.handle_type = WEIGHTS_CLIENT_MEMFD,
			.file_offset = 4096,
			.file_bytes_less = -4096},
		{.id = 2,
			.generation = 5,
			.n_allocs = 1,
			.has_manifest = true,
			.handle_type = WEIGHTS_CLIENT_DMA_BUF,
			.file_bytes_less = 4096},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(packets); i++) {
		struct weights_client *c = weights_peer_client();
		struct weights_client_acquired a;
		struct err e = ERR_NULL;
		struct fdlist fds;

		weights_client_set_handle_types(c, 0x1e);
		send_lease(&packets[i]);
		if (weights_client_acquire(c, "m", weights_peer_uuid, weights_peer_uuid, &e, &a))
			fail_msg("%s", e.text);
		assert_int_equal(a.allocs[0].handle_type, packets[i].handle_type);
		assert_int_equal(a.allocs[0].file_offset, packets[i].file_offset);
		assert_int_equal(a.allocs[0].writable, packets[i].file_offset != 0);
		Wd__Request *r = weights_peer_take(&fds);
		assert_int_equal(r->acquire->handle_types, 0x1e);
		wd__request__free_unpacked(r, NULL);
		weights_client_acquired_fini(&a);
		weights_peer_close(c);
	}
}

/* Acquire says what was refused: of each handle type the lowest index, and nothing before. */
static void tells_refusals(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct lease_packet packet = {
		.id = 2, .generation = 5, .n_allocs = 1, .has_manifest = true};
	struct weights_client_acquired a;
	struct err e = ERR_NULL;
	struct fdlist fds;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		packet.id = 2 + i;
		send_lease(&packet);
		if (weights_client_acquire(c, "m", weights_peer_uuid, weights_peer_uuid, &e, &a))
			fail_msg("%s", e.text);
		Wd__Request *r = weights_peer_take(&fds);
		assert_int_equal(r->acquire->n_refusals, 2 * i);
		if (i == 1) {
			assert_int_equal(
				r->acquire->refusals[0]->handle_type, WEIGHTS_CLIENT_MEMFD);
			assert_int_equal(r->acquire->refusals[0]->index, 0);
			assert_int_equal(r->acquire->refusals[1]->handle_type, WEIGHTS_CLIENT_FILE);
			assert_int_equal(r->acquire->refusals[1]->index, 17);
		}
		wd__request__free_unpacked(r, NULL);
		weights_client_acquired_fini(&a);
		assert_int_equal(weights_client_add_refusal(c, WEIGHTS_CLIENT_FILE, 17), 0);
		assert_int_equal(weights_client_add_refusal(c, WEIGHTS_CLIENT_FILE, 18), 0);
		assert_int_equal(weights_client_add_refusal(c, WEIGHTS_CLIENT_MEMFD, 9), 0);
		assert_int_equal(weights_client_add_refusal(c, WEIGHTS_CLIENT_MEMFD, 0), 0);
		assert_int_equal(weights_client_add_refusal(c, 0, 1), -EINVAL);
		assert_int_equal(
			weights_client_add_refusal(c, WEIGHTS_CLIENT_N_HANDLES, 1), -EINVAL);
	}
	weights_peer_close(c);
}

static void describes(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct weights_client_acquired a;
	struct err e = ERR_NULL;
	struct fdlist fds;

	(void)state;
	send_lease(&(struct lease_packet){
		.id = 2, .generation = 5, .n_allocs = 2, .has_manifest = true, .no_fds = true});
	if (weights_client_describe(c, "atlas", &e, &a))
		fail_msg("%s", e.text);
	assert_int_equal(a.n_allocs, 2);
	assert_int_equal(a.allocs[1].fd, -1);
	assert_int_equal(a.allocs[1].placement, MANIFEST_PLACEMENT_STAGED);
	assert_true(a.manifest_fd >= 0);
	Wd__Request *r = weights_peer_take(&fds);
	assert_string_equal(r->describe->model, "atlas");
	wd__request__free_unpacked(r, NULL);
	weights_client_acquired_fini(&a);

	/* Descriptors come with a lease alone. */
	send_lease(&(struct lease_packet){
		.id = 3, .generation = 5, .n_allocs = 2, .has_manifest = true});
	assert_int_equal(weights_client_describe(c, "atlas", &e, &a), -EPROTO);
	weights_peer_close(c);
}

static void refuses_a_broken_second_packet(void **state)
{
	(void)state;
	REFUSES("manifest once", (first.more = second.has_manifest = true));
	REFUSES("generation: expected 5, found 6", (first.more = true, second.generation = 6));
	REFUSES("index 2, found 3", (first.more = true, second.first_index = 3));
	REFUSES("index 2, found 1", (first.more = true, second.first_index = 1));
	REFUSES("expected id 2, found 3", (first.more = true, second.id = 3));
	/* A packet that brings nothing and promises more would hold the client for ever. */
	REFUSES("without allocations", (first.more = second.more = true, second.n_allocs = 0));
}

static void refuses_broken_packets(void **state)
{
	static const struct {
		int r;
		uint32_t n;
		const char *bytes;
	} rows[] = {
		{-EBADMSG, 3, "\xff\xff\xff"},     /* no protobuf */
		{-EBADMSG, 4, "\x08\x02\x1a\x7f"}, /* an Error longer than the packet */
		{-EPROTO, 2, "\x08\x02"},          /* id 2 and nothing else */
		{0, 4, "\x08\x02\x32\x00"},        /* Done: this one is right */
		{-EPROTO, 4, "\x08\x02\x3a\x00"},  /* Models */
		{-EPROTO, 4, "\x08\x00\x4a\x00"},  /* an event of no kind */
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct weights_client *c = weights_peer_client();
		struct err e = ERR_NULL;

		assert_int_equal(wire_send(weights_peer, rows[i].bytes, rows[i].n, NULL), 0);
		assert_int_equal(weights_client_watch(c, &e), rows[i].r);
		weights_peer_close(c);
	}
}

static void refuses_descriptors_nobody_asked_for(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct fdlist fds = FDLIST_NULL;
	Wd__Done d = WD__DONE__INIT;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(fdlist_add(&fds, make_memfd(1)), 0);
	weights_peer_reply(2, WD__REPLY__BODY_DONE, &d, &fds);
	fdlist_fini(&fds);
	assert_int_equal(weights_client_watch(c, &e), -EPROTO);
	assert_non_null(strstr(e.text, "no descriptors"));
	weights_peer_close(c);
}

static void loads_with_the_file(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct err e = ERR_NULL;
	struct fdlist fds;
	struct stat mine, theirs;
	uint64_t generation;
	int file = make_memfd(12);

	(void)state;
	weights_peer_done(2, 9);
	assert_int_equal(
		weights_client_load(c, "atlas", "/models/a.gguf", file, true, &e, &generation), 0);
	assert_int_equal(generation, 9);
	Wd__Request *r = weights_peer_take(&fds);
	assert_string_equal(r->load->name, "atlas");
	assert_string_equal(r->load->path, "/models/a.gguf");
	assert_true(r->load->replace);
	assert_int_equal(fds.n, 1);
	assert_int_equal(fstat(file, &mine), 0);
	assert_int_equal(fstat(fds.fds[0], &theirs), 0);
	assert_int_equal(mine.st_ino, theirs.st_ino);
	fdlist_fini(&fds);
	wd__request__free_unpacked(r, NULL);

	weights_peer_error(3, EEXIST, "model atlas: already there\nforged line");
	assert_int_equal(
		weights_client_load(c, "atlas", "p", file, false, &e, &generation), -EEXIST);
	assert_string_equal(e.text, "model atlas: already there?forged line");
	/* A refusal is no broken connection. */
	weights_peer_done(4, 0);
	assert_int_equal(weights_client_unload(c, "atlas", &e), 0);
	/* A code that is no errno. */
	weights_peer_error(5, -7, "");
	assert_int_equal(weights_client_unload(c, "atlas", &e), -EPROTO);
	assert_string_not_equal(e.text, "");
	close(file);
	weights_peer_done(6, 0);
	assert_int_equal(weights_client_unload_within(c, "atlas", 5000000000, &e), 0);
	weights_peer_done(7, 0);
	assert_int_equal(weights_client_pin(c, "atlas", true, &e), 0);
	weights_peer_done(8, 0);
	assert_int_equal(weights_client_release(c, 77, &e), 0);
	weights_peer_done(9, 0);
	assert_int_equal(weights_client_unload_within(c, "atlas", 0, &e), 0);
	r = weights_peer_take(&fds); /* the second load */
	for (int i = 0; i < 3; i++) {
		wd__request__free_unpacked(r, NULL);
		fdlist_fini(&fds);
		r = weights_peer_take(&fds);
	}
	assert_int_equal(r->body_case, WD__REQUEST__BODY_UNLOAD);
	assert_int_equal(r->unload->timeout_ns, 5000000000);
	assert_false(r->unload->at_once);
	wd__request__free_unpacked(r, NULL);
	r = weights_peer_take(&fds);
	assert_int_equal(r->body_case, WD__REQUEST__BODY_PIN);
	assert_string_equal(r->pin->model, "atlas");
	assert_true(r->pin->pinned);
	wd__request__free_unpacked(r, NULL);
	r = weights_peer_take(&fds);
	assert_int_equal(r->body_case, WD__REQUEST__BODY_RELEASE);
	assert_int_equal(r->release->generation, 77);
	wd__request__free_unpacked(r, NULL);
	r = weights_peer_take(&fds);
	assert_int_equal(r->body_case, WD__REQUEST__BODY_UNLOAD);
	assert_int_equal(r->unload->timeout_ns, 0);
	assert_true(r->unload->at_once);
	wd__request__free_unpacked(r, NULL);
	weights_peer_close(c);
}

static void refuses_oversize_requests(void **state)
{
	static char path[WIRE_MAX_BYTES + 1];
	struct weights_client *c = weights_peer_client();
	struct err e = ERR_NULL;
	uint64_t generation;

	(void)state;
	memset(path, 'x', sizeof(path) - 1);
	assert_int_equal(weights_client_load(c, "a", path, 0, false, &e, &generation), -EMSGSIZE);
	weights_peer_close(c);
}

struct seen {
	int n;
	enum weights_client_event_kind last;
	char model[32];
	uint64_t since_ns;
	struct weights_client_contents contents;
};

static void see(const struct weights_client_event *event, void *userdata)
{
	struct seen *seen = userdata;

	seen->n++;
	seen->last = event->kind;
	seen->since_ns = event->since_ns;
	seen->contents = event->contents;
	snprintf(seen->model, sizeof(seen->model), "%s", event->model);
}

static uint8_t weights_peer_digest[] = "0123456789abcdef0123456789abcdef";

static void send_event(Wd__Event__Kind kind)
{
	Wd__Event event = WD__EVENT__INIT;

	event.kind = kind;
	event.model = (char *)"atlas";
	event.since_ns = kind == WD__EVENT__KIND__CORRUPT ? 12 : 0;
	if (kind == WD__EVENT__KIND__CORRUPT)
		event.file_identity = (ProtobufCBinaryData){.len = 32, .data = weights_peer_digest};
	weights_peer_reply(0, WD__REPLY__BODY_EVENT, &event, NULL);
}

static void hands_events_on(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct err e = ERR_NULL;
	struct seen seen = {0};

	(void)state;
	/* With nobody to hear, an event is dropped. */
	send_event(WD__EVENT__KIND__PROGRESS);
	weights_peer_done(2, 0);
	assert_int_equal(weights_client_watch(c, &e), 0);

	weights_client_set_event_fn(c, see, &seen);
	assert_int_equal(weights_client_dispatch(c, &e), 0);
	assert_int_equal(seen.n, 0);
	send_event(WD__EVENT__KIND__PROGRESS);
	send_event(WD__EVENT__KIND__READY);
	assert_int_equal(weights_client_dispatch(c, &e), 0);
	assert_int_equal(seen.n, 2);
	assert_int_equal(seen.last, WEIGHTS_CLIENT_READY);
	assert_string_equal(seen.model, "atlas");
	send_event(WD__EVENT__KIND__CORRUPT);
	assert_int_equal(weights_client_dispatch(c, &e), 0);
	assert_int_equal(seen.last, WEIGHTS_CLIENT_CORRUPT);
	assert_int_equal(seen.since_ns, 12);
	assert_true(seen.contents.has_file && !seen.contents.has_identity);
	assert_memory_equal(seen.contents.file, weights_peer_digest, 32);

	/* In the middle of a call. */
	send_event(WD__EVENT__KIND__UNLOADED);
	weights_peer_done(3, 0);
	assert_int_equal(weights_client_unload(c, "atlas", &e), 0);
	assert_int_equal(seen.n, 4);

	close(weights_peer);
	assert_int_equal(weights_client_dispatch(c, &e), -ECONNRESET);
	weights_client_free(c);
}

static void refuses_bad_events(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct err e = ERR_NULL;
	struct fdlist fds = FDLIST_NULL;
	Wd__Event event = WD__EVENT__INIT;

	(void)state;
	event.kind = WD__EVENT__KIND__READY;
	assert_int_equal(fdlist_add(&fds, make_memfd(1)), 0);
	weights_peer_reply(0, WD__REPLY__BODY_EVENT, &event, &fds);
	fdlist_fini(&fds);
	assert_int_equal(weights_client_dispatch(c, &e), -EPROTO);
	event.kind = WD__EVENT__KIND__IDENTIFIED;
	event.identity = (ProtobufCBinaryData){.len = 31, .data = (uint8_t *)weights_peer_digest};
	weights_peer_reply(0, WD__REPLY__BODY_EVENT, &event, NULL);
	assert_int_equal(weights_client_dispatch(c, &e), -EPROTO);
	assert_non_null(strstr(e.text, "identity: expected 32 bytes, found 31"));
	event.identity.len = 0;
	event.kind = (Wd__Event__Kind)99;
	weights_peer_reply(0, WD__REPLY__BODY_EVENT, &event, NULL);
	assert_int_equal(weights_client_dispatch(c, &e), -EPROTO);
	weights_peer_done(2, 0); /* nobody asked */
	assert_int_equal(weights_client_dispatch(c, &e), -EPROTO);
	weights_peer_close(c);
}

/* Identities decide where both are known, else the files; what is not known is like nothing. */
static void compares_contents(void **state)
{
	struct weights_client_contents a = {0}, b = {0};

	(void)state;
	assert_false(weights_client_has_same_contents(&a, &b));
	a.has_file = b.has_file = true;
	assert_true(weights_client_has_same_contents(&a, &b));
	a.file[31] = 1;
	assert_false(weights_client_has_same_contents(&a, &b));
	a.has_identity = true;
	assert_false(weights_client_has_same_contents(&a, &b));
	b.has_identity = true;
	assert_true(weights_client_has_same_contents(&a, &b));
	a.file[31] = 0;
	b.identity[31] = 1;
	assert_false(weights_client_has_same_contents(&a, &b));
	b.has_identity = b.has_file = false;
	assert_false(weights_client_has_same_contents(&a, &b));
}

static void reports(void **state)
{
	struct weights_client *c = weights_peer_client();
	const struct weights_client_report report = {
		.kv_bytes = 1, .n_sessions = 2, .socket = "/run/w.sock"};
	struct err e = ERR_NULL;
	struct fdlist fds;

	(void)state;
	weights_peer_done(2, 0);
	assert_int_equal(weights_client_report(c, &report, &e), 0);
	Wd__Request *r = weights_peer_take(&fds);
	assert_int_equal(r->worker_report->kv_bytes, 1);
	assert_int_equal(r->worker_report->n_sessions, 2);
	assert_string_equal(r->worker_report->socket, "/run/w.sock");
	wd__request__free_unpacked(r, NULL);
	close(weights_peer);
	assert_int_equal(weights_client_report(c, &report, &e), -ECONNRESET);
	weights_client_free(c);
}

static void *serve_one(void *arg)
{
	const int *listener = arg;
	struct fdlist fds;

	while ((weights_peer = accept4(*listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
		usleep(1000);
	Wd__Request *r = weights_peer_take(&fds);
	wd__request__free_unpacked(r, NULL);
	weights_peer_welcome(WIRE_PROTOCOL);
	return NULL;
}

static void connects_to_a_path(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct weights_client *c = NULL;
	struct err e = ERR_NULL;
	pthread_t thread;
	int listener;

	(void)state;
	assert_int_equal(weights_client_new(dir.path, WEIGHTS_CLIENT_CONTROL, &e, &c), -ENOENT);
	assert_int_equal(wire_listen(dir.path, 0600, &e, &listener), 0);
	assert_int_equal(pthread_create(&thread, NULL, serve_one, &listener), 0);
	assert_int_equal(setenv("WEIGHTD_SOCKET", dir.path, 1), 0);
	assert_int_equal(weights_client_new(NULL, WEIGHTS_CLIENT_CONTROL, &e, &c), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_string_equal(weights_client_get_device(c)->name, "Imaginary");
	weights_peer_close(c);
	close(listener);
	socket_dir_free(&dir);
}

static void knows_the_default_path(void **state)
{
	char path[64], shorter[8];

	(void)state;
	assert_int_equal(setenv("WEIGHTD_SOCKET", "/a/b", 1), 0);
	assert_int_equal(setenv("XDG_RUNTIME_DIR", "/run/user/7", 1), 0);
	assert_int_equal(weights_client_default_path(path, sizeof(path)), 0);
	assert_string_equal(path, "/a/b");
	assert_int_equal(unsetenv("WEIGHTD_SOCKET"), 0);
	assert_int_equal(weights_client_default_path(path, sizeof(path)), 0);
	assert_string_equal(path, "/run/user/7/weightd.sock");
	assert_int_equal(weights_client_default_path(shorter, sizeof(shorter)), -ENAMETOOLONG);
	assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
	assert_int_equal(weights_client_default_path(path, sizeof(path)), 0);
	assert_string_equal(path, "/run/weightd/weightd.sock");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(says_hello),
		CASE(passes_on_a_refused_hello),
		CASE(passes_on_a_refused_connection),
		CASE(refuses_a_bad_device),
		CASE(acquires_over_several_packets),
		CASE(refuses_a_broken_lease),
		CASE(accepts_other_handles),
		CASE(tells_refusals),
		CASE(describes),
		CASE(refuses_a_broken_second_packet),
		CASE(refuses_broken_packets),
		CASE(refuses_descriptors_nobody_asked_for),
		CASE(loads_with_the_file),
		CASE(refuses_oversize_requests),
		CASE(hands_events_on),
		CASE(refuses_bad_events),
		CASE(compares_contents),
		CASE(reports),
		CASE(connects_to_a_path),
		CASE(knows_the_default_path),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
