/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/weights-peer.h"

static void fill_status(Wd__Status *s, Wd__Device *device, Wd__Model *model, Wd__Peer *p)
{
	static Wd__Allocation alloc;
	static Wd__Allocation *allocs[] = {&alloc};
	static Wd__Generation generation;
	static Wd__Generation *generations[] = {&generation};
	static Wd__Lease lease;
	static Wd__Lease *leases[] = {&lease};
	static Wd__WorkerReport report;
	static uint8_t identity[] = "0123456789abcdef0123456789abcdef";

	*device = weights_peer_device();
	wd__allocation__init(&alloc);
	alloc.n_bytes = 10;
	alloc.placement = WD__PLACEMENT__PLACEMENT_DEVICE;
	alloc.inode = 77;
	wd__generation__init(&generation);
	generation.id = 3;
	generation.state = WD__GENERATION_STATE__GENERATION_STATE_READY;
	generation.origin = (char *)"loaded";
	generation.weights_bytes = 10;
	generation.residency = 5;
	generation.identity = (ProtobufCBinaryData){.len = 32, .data = identity};
	generation.verified_ns = 99;
	generation.n_allocations = 1;
	generation.allocations = allocs;
	wd__model__init(model);
	model->name = (char *)"atlas";
	model->n_generations = 1;
	model->generations = generations;
	wd__lease__init(&lease);
	lease.model = (char *)"atlas";
	lease.generation = 3;
	wd__worker_report__init(&report);
	report.kv_bytes = 50;
	report.socket = (char *)"/run/w.sock";
	wd__peer__init(p);
	p->pid = 42;
	p->role = WD__ROLE__ROLE_WORKER;
	p->n_leases = 1;
	p->leases = leases;
	p->report = &report;
	wd__status__init(s);
	s->pid = 41;
	s->build = (char *)"0.1";
	s->device = device;
}

static void reads_status(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct weights_client_status s;
	struct err e = ERR_NULL;
	Wd__Device device;
	Wd__Status m;
	Wd__Model model, *models[] = {&model, &model};
	Wd__Peer p, *peers[] = {&p};

	(void)state;
	fill_status(&m, &device, &model, &p);
	m.n_models = 2;
	m.models = models;
	m.more = true;
	weights_peer_reply(2, WD__REPLY__BODY_STATUS, &m, NULL);
	wd__status__init(&m);
	m.n_peers = 1;
	m.peers = peers;
	weights_peer_reply(2, WD__REPLY__BODY_STATUS, &m, NULL);

	assert_int_equal(weights_client_status(c, &e, &s), 0);
	assert_int_equal(s.pid, 41);
	assert_string_equal(s.build, "0.1");
	assert_string_equal(s.device.name, "Imaginary");
	assert_int_equal(s.n_models, 2);
	assert_string_equal(s.models[1].name, "atlas");
	assert_string_equal(s.models[1].generations[0].state, "ready");
	assert_string_equal(s.models[1].generations[0].origin, "loaded");
	assert_string_equal(s.models[1].generations[0].path, "");
	assert_true(s.models[1].generations[0].has_identity);
	assert_int_equal(s.models[1].generations[0].identity[31], 'f');
	assert_int_equal(s.models[1].generations[0].verified_ns, 99);
	assert_int_equal(s.models[1].generations[0].n_allocs, 1);
	assert_int_equal(s.models[1].generations[0].allocs[0].inode, 77);
	assert_int_equal(s.models[1].generations[0].allocs[0].fd, -1);
	assert_int_equal(s.n_peers, 1);
	assert_int_equal(s.peers[0].pid, 42);
	assert_string_equal(s.peers[0].leases[0].model, "atlas");
	assert_true(s.peers[0].has_report);
	assert_int_equal(s.peers[0].report.kv_bytes, 50);
	assert_string_equal(s.peers[0].report.socket, "/run/w.sock");
	weights_client_status_fini(&s);
	weights_client_status_fini(&s);

	Wd__Models list = WD__MODELS__INIT;
	list.n_models = 1;
	list.models = models;
	weights_peer_reply(3, WD__REPLY__BODY_MODELS, &list, NULL);
	assert_int_equal(weights_client_list(c, &e, &s), 0);
	assert_int_equal(s.n_models, 1);
	assert_int_equal(s.models[0].generations[0].residency, 5);
	assert_int_equal(s.n_peers, 0);
	weights_client_status_fini(&s);
	weights_peer_close(c);
}

static void refuses_a_bad_status(void **state)
{
	(void)state;
	for (int i = 0; i < 7; i++) {
		struct weights_client *c = weights_peer_client();
		struct weights_client_status s;
		struct err e = ERR_NULL;
		Wd__Device device;
		Wd__Status m;
		Wd__Model model;
		Wd__Peer p, *peers[] = {&p};
		static Wd__Model empty = WD__MODEL__INIT;
		Wd__Model *many[1025];
		Wd__Model *models[] = {&model};

		fill_status(&m, &device, &model, &p);
		m.n_models = 1;
		m.models = models;
		m.n_peers = 1;
		m.peers = peers;
		for (int k = 0; k < 1025; k++)
			many[k] = &empty;
		if (i == 0)
			model.generations[0]->state = 99;
		if (i == 1)
			model.generations[0]->allocations[0]->placement = 5;
		if (i == 6)
			model.generations[0]->identity.len = 31;
		if (i == 2)
			p.role = 3;
		if (i == 3)
			m.device = NULL;
		if (i == 4) {
			m.n_models = 1025;
			m.models = many;
		}
		if (i == 5) {
			m.n_models = 0;
			m.n_peers = 0;
			m.more = true;
		}
		weights_peer_reply(2, WD__REPLY__BODY_STATUS, &m, NULL);
		assert_int_equal(weights_client_status(c, &e, &s), -EPROTO);
		assert_string_not_equal(e.text, "");
		weights_peer_close(c);
	}
}

static void reads_verified(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct weights_client_verified v;
	struct err e = ERR_NULL;
	Wd__Difference difference = WD__DIFFERENCE__INIT, *rows[] = {&difference};
	Wd__Verified m = WD__VERIFIED__INIT;
	struct fdlist fds;

	(void)state;
	difference.tensor = (char *)"output_norm.weight";
	difference.allocation = 2;
	difference.offset = 1 << 20;
	difference.n_bytes = 5;
	m.generation = 3;
	m.n_bytes = 100;
	m.elapsed_ns = 7;
	m.n_tensors = 9;
	m.n_differences = 1;
	m.differences = rows;
	weights_peer_reply(2, WD__REPLY__BODY_VERIFIED, &m, NULL);
	assert_int_equal(weights_client_verify(c, "atlas", &e, &v), 0);
	assert_int_equal(v.generation, 3);
	assert_int_equal(v.n_bytes, 100);
	assert_int_equal(v.elapsed_ns, 7);
	assert_int_equal(v.n_tensors, 9);
	assert_int_equal(v.n_differences, 1);
	assert_string_equal(v.differences[0].tensor, "output_norm.weight");
	assert_int_equal(v.differences[0].allocation, 2);
	assert_int_equal(v.differences[0].offset, 1 << 20);
	assert_int_equal(v.differences[0].n_bytes, 5);
	Wd__Request *r = weights_peer_take(&fds);
	assert_string_equal(r->verify->model, "atlas");
	wd__request__free_unpacked(r, NULL);
	weights_peer_close(c);
}

static void refuses_a_bad_verified(void **state)
{
	static char name[] = "01234567890123456789012345678901234567890123456789012345678901234567"
			     "890123456789";
	Wd__Difference *rows[65];

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct weights_client *c = weights_peer_client();
		struct weights_client_verified v;
		struct err e = ERR_NULL;
		Wd__Difference difference = WD__DIFFERENCE__INIT;
		Wd__Verified m = WD__VERIFIED__INIT;

		for (int k = 0; k < 65; k++)
			rows[k] = &difference;
		m.n_tensors = 100;
		m.n_differences = 64;
		m.differences = rows;
		if (i == 0)
			m.n_differences = 65;
		if (i == 1)
			m.n_tensors = 63;
		if (i == 2)
			difference.tensor = name;
		weights_peer_reply(2, WD__REPLY__BODY_VERIFIED, &m, NULL);
		assert_int_equal(weights_client_verify(c, "atlas", &e, &v), -EPROTO);
		assert_true(e.text[0] != '\0');
		weights_peer_close(c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(reads_status),
		CASE(refuses_a_bad_status),
		CASE(reads_verified),
		CASE(refuses_a_bad_verified),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
