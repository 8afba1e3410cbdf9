/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/output.h"

#include <string.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/weights-client.h"
#include "proto/worker-client.h"
#include "tests/case.h"
#include "weightctl/figure.h"
#include "weightctl/generation.h"
#include "weightctl/sharing.h"
#include "weightctl/status-json.h"
#include "weightctl/status-names.h"

static void test_figures(void **state)
{
	(void)state;
	assert_string_equal(figure_bytes(0).text, "0.0 KiB");
	assert_string_equal(figure_bytes(300).text, "0.3 KiB");
	assert_string_equal(figure_bytes(100 << 10).text, "100.0 KiB");
	assert_string_equal(figure_bytes((1 << 20) - 1).text, "1.0 MiB");
	assert_string_equal(figure_bytes(1 << 20).text, "1.0 MiB");
	assert_string_equal(figure_bytes(6276864).text, "6.0 MiB");
	assert_string_equal(figure_bytes(1023u << 20).text, "1023.0 MiB");
	assert_string_equal(figure_bytes((1u << 30) - 1).text, "1.0 GiB");
	assert_string_equal(figure_bytes(1u << 30).text, "1.0 GiB");
	assert_string_equal(figure_bytes(UINT64_MAX).text, "17179869184.0 GiB");

	assert_string_equal(figure_time(0).text, "0.0 ms");
	assert_string_equal(figure_time(999900000).text, "999.9 ms");
	assert_string_equal(figure_time(999999999).text, "1.0 s");
	assert_string_equal(figure_time(59999999999).text, "0 min 59 s");
	assert_string_equal(figure_time(63000000000).text, "1 min 03 s");
	assert_string_equal(figure_time(7500000000000).text, "2 h 05 min");
	assert_string_equal(figure_time(UINT64_MAX).text, "5124095 h 34 min");

	assert_string_equal(figure_count(980).text, "980");
	assert_string_equal(figure_count(3100000).text, "3.1 M");
	assert_string_equal(figure_count(999999999).text, "1.0 B");
	assert_string_equal(figure_count(7600000000).text, "7.6 B");
}

static void assert_json_string(const char *text, uint64_t n_bytes, const char *expected)
{
	json_t *s = output_string(text, n_bytes);

	assert_non_null(s);
	assert_string_equal(json_string_value(s), expected);
	json_decref(s);
}

static void test_strings(void **state)
{
	(void)state;
	assert_json_string("", 0, "");
	assert_json_string("caf\xc3\xa9 \xf0\x9f\x98\x80", 10, "caf\xc3\xa9 \xf0\x9f\x98\x80");
	assert_json_string("a\xff\xc3", 3, "a\xef\xbf\xbd\xef\xbf\xbd");
	assert_json_string("\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	json_t *s = output_string("a\0b", 3);
	assert_int_equal(json_string_length(s), 3);
	json_decref(s);
	s = output_name(NULL);
	assert_string_equal(json_string_value(s), "");
	json_decref(s);
}

static char demo[] = "demo", loaded[] = "loaded", path[] = "/models/\xff.gguf", none[] = "";
static struct weights_client_alloc allocs[] = {
	{.index = 0,
		.n_bytes = 4096,
		.buffer_bytes = 4000,
		.handle_type = WEIGHTS_CLIENT_MEMFD,
		.placement = MANIFEST_PLACEMENT_STAGED,
		.inode = 77,
		.dev = 5},
};
static struct weights_client_generation generations[] = {
	{.id = 1,
		.state = "draining",
		.origin = loaded,
		.path = path,
		.architecture = none,
		.format = none,
		.weights_bytes = 1000},
	{.id = 2,
		.state = "ready",
		.origin = loaded,
		.path = path,
		.architecture = none,
		.format = none,
		.weights_bytes = 4000,
		.identity = {0xab, [31] = 0xcd},
		.has_identity = true,
		.verified_ns = 5,
		.n_leases = 2,
		.residency = 1 << 0 | 1 << 1 | 1 << 3,
		.n_allocs = 1,
		.allocs = allocs},
};
static struct weights_client_model models[] = {
	{.name = demo, .n_generations = 2, .generations = generations}};
static struct weights_client_lease leases[] = {
	{.model = demo, .generation = 2, .age_ns = 1}, {.model = demo, .generation = 1}};
static struct weights_client_peer peers[] = {
	{.pid = 10,
		.role = WEIGHTS_CLIENT_WORKER,
		.n_leases = 2,
		.leases = leases,
		.has_report = true,
		.report = {.kv_bytes = 100, .scratch_bytes = 20, .io_bytes = 3, .socket = "w"}},
	{.pid = 11, .role = WEIGHTS_CLIENT_CONTROL},
	{.pid = 12, .role = WEIGHTS_CLIENT_WORKER, .n_leases = 1, .leases = leases},
	/* Held without a lease: no worker any more. */
	{.pid = 13,
		.role = WEIGHTS_CLIENT_WORKER,
		.n_leases = 1,
		.leases = leases,
		.is_gone = true},
};
static const struct weights_client_status status = {
	.pid = 9, .build = none, .n_models = 1, .models = models, .n_peers = 4, .peers = peers};

/* No command for the terminal gets through: neither by C0 nor, in UTF-8, by C1. */
static void test_clean(void **state)
{
	char found[64] = "";
	int pipes[2], saved = dup(STDOUT_FILENO);

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	fflush(stdout);
	dup2(pipes[1], STDOUT_FILENO);
	output_clean("a\x1b[2J\x7f"
		     "b\xc2\x9b"
		     "2J\xc2\x85\xc2\xa0\xc3\x9f");
	output_clean(NULL);
	fflush(stdout);
	dup2(saved, STDOUT_FILENO);
	ssize_t n = read(pipes[0], found, sizeof(found) - 1);
	close(saved);
	close(pipes[0]);
	close(pipes[1]);
	assert_true(n > 0);
	assert_string_equal(found, "a?[2J?b?2J?\xc2\xa0\xc3\x9f");
}

static void test_sharing(void **state)
{
	(void)state;
	struct sharing s = sharing_count(&status);

	assert_int_equal(s.n_workers, 2);
	assert_int_equal(s.n_leases, 3);
	assert_int_equal(s.resident_bytes, 5000);
	assert_int_equal(s.private_bytes, 123);
	assert_int_equal(s.separate_bytes, 9000);
	assert_null(sharing_find_generation(&status, 3));
}

static json_t *at(json_t *array, size_t index)
{
	json_t *element = json_array_get(array, index);

	assert_non_null(element);
	return element;
}

static json_int_t integer(json_t *object, const char *key)
{
	json_t *value = json_object_get(object, key);

	assert_true(json_is_integer(value));
	return json_integer_value(value);
}

static void test_status_json(void **state)
{
	(void)state;
	json_t *s = status_json_weightd(&status);

	assert_non_null(s);
	assert_int_equal(integer(s, "pid"), 9);
	json_t *rows = json_object_get(at(json_object_get(s, "models"), 0), "generations");
	assert_int_equal(json_array_size(rows), 2);
	json_t *generation = at(rows, 1);
	assert_int_equal(integer(generation, "id"), 2);
	assert_int_equal(integer(generation, "n_leases"), 2);
	assert_string_equal(json_string_value(json_object_get(generation, "origin")), "loaded");
	json_t *devices = json_object_get(generation, "devices");
	assert_int_equal(json_array_size(devices), 3);
	assert_int_equal(json_integer_value(at(devices, 0)), 0);
	assert_int_equal(json_integer_value(at(devices, 2)), 3);
	assert_int_equal(json_array_size(json_object_get(at(rows, 0), "devices")), 0);
	const char *identity = json_string_value(json_object_get(generation, "identity"));
	assert_int_equal(strlen(identity), 64);
	assert_memory_equal(identity, "ab00", 4);
	assert_string_equal(identity + 60, "00cd");
	assert_int_equal(integer(generation, "verified_ns"), 5);
	assert_string_equal(json_string_value(json_object_get(at(rows, 0), "identity")), "");
	json_t *allocation = at(json_object_get(generation, "allocations"), 0);
	assert_int_equal(integer(allocation, "n_bytes"), 4096);
	assert_int_equal(integer(allocation, "inode"), 77);
	assert_int_equal(integer(allocation, "dev"), 5);
	assert_string_equal(json_string_value(json_object_get(allocation, "placement")), "staged");
	json_t *workers = json_object_get(s, "workers");
	assert_int_equal(json_array_size(workers), 2); /* control clients are none */
	assert_int_equal(integer(at(workers, 0), "kv_bytes"), 100);
	assert_int_equal(integer(at(workers, 1), "pid"), 12);
	assert_int_equal(
		integer(at(json_object_get(at(workers, 0), "leases"), 1), "generation"), 1);
	json_t *holders = json_object_get(s, "holders");
	assert_int_equal(json_array_size(holders), 1);
	assert_int_equal(integer(at(holders, 0), "pid"), 13);
	assert_int_equal(json_array_size(json_object_get(at(holders, 0), "holds")), 1);
	assert_int_equal(integer(json_object_get(s, "sharing"), "separate_bytes"), 9000);
	json_decref(s);
}

/* The column of ls: numbers from 0, as a person counts the rows of `status --devices`. */
static void test_residency(void **state)
{
	(void)state;
	assert_string_equal(status_names_residency(0).text, "-");
	assert_string_equal(status_names_residency(1).text, "others");
	assert_string_equal(status_names_residency(1 << 1).text, "0");
	assert_string_equal(status_names_residency(1 << 1 | 1 << 2 | 1 << 12).text, "0,1,11");
	assert_string_equal(status_names_residency(1 << 3 | 1).text, "2,others");
	/* Whatever a weightd says. */
	assert_true(strlen(status_names_residency(UINT32_MAX).text) <
		    sizeof(status_names_residency(0).text));
	assert_non_null(strstr(status_names_residency(UINT32_MAX).text, ",30,others"));
}

static void test_worker_json(void **state)
{
	(void)state;
	struct worker_client_status w = {.pid = 7,
		.model = "demo",
		.n_roles = 1,
		.roles = {{.name = "kv", .placed_bytes = 5}},
		.weightd_connected = true,
		.has_identity = true,
		.identity = {0xab, [31] = 0xcd},
		.experts = {.n_slots = 12,
			.n_bytes = 1ull << 33,
			.n_found = 9,
			.n_fetched = 3,
			.n_direct = 2}};
	json_t *s = status_json_worker(&w);

	assert_non_null(s);
	assert_int_equal(integer(s, "pid"), 7);
	assert_int_equal(integer(at(json_object_get(s, "roles"), 0), "placed_bytes"), 5);
	assert_true(json_is_true(json_object_get(s, "weightd_connected")));
	json_t *experts = json_object_get(s, "experts");
	assert_int_equal(integer(experts, "slots"), 12);
	assert_int_equal(integer(experts, "bytes"), 1ll << 33);
	assert_int_equal(integer(experts, "found"), 9);
	assert_int_equal(integer(experts, "fetched"), 3);
	assert_int_equal(integer(experts, "direct"), 2);
	assert_string_equal(json_string_value(json_object_get(s, "state")), "ready");
	const char *identity = json_string_value(json_object_get(s, "identity"));
	assert_int_equal(strlen(identity), 64);
	assert_string_equal(identity + 60, "00cd");
	json_decref(s);
	w.has_identity = false;
	w.is_parked = true;
	s = status_json_worker(&w);
	assert_string_equal(json_string_value(json_object_get(s, "state")), "parked");
	assert_string_equal(json_string_value(json_object_get(s, "identity")), "");
	json_decref(s);
}

static void test_memory_json(void **state)
{
	(void)state;
	struct worker_client_status w = {.n_roles = 1,
		.roles = {{.name = "kv",
			.imported_bytes = 1,
			.peak_bytes = 2,
			.n_spills = 3,
			.n_heaps = 1,
			.heaps = {{.heap = 4, .spilled_bytes = 5}}}},
		.memory = {.n_heaps = 1,
			.heaps = {{.n_bytes = 1ull << 40, .device_local = true}},
			.n_slices = 1,
			.total_slices = 6,
			.slices = {{.name = "qkv\xff",
				.role = "scratch",
				.n = 7,
				.heap = 8,
				.host_visible = true,
				.spilled = true}},
			.n_values = 9,
			.scratch_peak_bytes = 10,
			.scratch_sum_bytes = 11,
			.chunk = 64,
			.asked_chunk = 256,
			.is_chunk_default = true,
			.budget_bytes = 12}};
	json_t *s = status_json_worker(&w);
	json_t *role = at(json_object_get(s, "roles"), 0), *memory = json_object_get(s, "memory");
	json_t *heap = at(json_object_get(role, "heaps"), 0);
	json_t *slice = at(json_object_get(memory, "slices"), 0);
	json_t *scratch = json_object_get(memory, "scratch");
	json_t *chunk = json_object_get(memory, "chunk");

	assert_int_equal(integer(role, "imported_bytes"), 1);
	assert_int_equal(integer(role, "peak_bytes"), 2);
	assert_int_equal(integer(role, "spills"), 3);
	assert_int_equal(integer(heap, "heap"), 4);
	assert_int_equal(integer(heap, "spilled_bytes"), 5);
	assert_int_equal(integer(at(json_object_get(memory, "heaps"), 0), "n_bytes"), 1ll << 40);
	assert_int_equal(integer(memory, "total_slices"), 6);
	/* Whatever a worker says is UTF-8 here. */
	assert_string_equal(json_string_value(json_object_get(slice, "name")), "qkv\xef\xbf\xbd");
	assert_string_equal(json_string_value(json_object_get(slice, "role")), "scratch");
	assert_int_equal(integer(slice, "n"), 7);
	assert_int_equal(integer(slice, "heap"), 8);
	assert_true(json_is_true(json_object_get(slice, "host_visible")));
	assert_true(json_is_false(json_object_get(slice, "device_local")));
	assert_true(json_is_true(json_object_get(slice, "spilled")));
	assert_int_equal(integer(scratch, "n_values"), 9);
	assert_int_equal(integer(scratch, "peak_bytes"), 10);
	assert_int_equal(integer(scratch, "sum_bytes"), 11);
	assert_int_equal(integer(chunk, "tokens"), 64);
	assert_int_equal(integer(chunk, "asked_tokens"), 256);
	assert_true(json_is_true(json_object_get(chunk, "defaulted")));
	assert_int_equal(integer(chunk, "budget_bytes"), 12);
	json_decref(s);
}

static void test_generation_json(void **state)
{
	(void)state;
	char text[] = {'o', 'k', (char)0xff};
	uint32_t ids[] = {5, UINT32_MAX};
	struct generation g = {.text = text,
		.n_bytes = 3,
		.ids = ids,
		.n_ids = 2,
		.finished = {.reason = WORKER_CLIENT_LENGTH,
			.prompt_tokens = 30,
			.cached_tokens = 10,
			.generated_tokens = 3,
			.prompt_ns = 500000000,
			.generate_ns = 1000000000,
			.seed = UINT64_MAX}};
	json_t *s = generation_json(&g);

	assert_non_null(s);
	assert_string_equal(json_string_value(json_object_get(s, "text")), "ok\xef\xbf\xbd");
	assert_int_equal(json_array_size(json_object_get(s, "tokens")), 2);
	assert_int_equal(json_integer_value(at(json_object_get(s, "tokens"), 1)), UINT32_MAX);
	assert_int_equal(integer(s, "prompt_tokens"), 30);
	assert_string_equal(json_string_value(json_object_get(s, "finish_reason")), "length");
	assert_string_equal(json_string_value(json_object_get(s, "seed")), "18446744073709551615");
	json_t *timings = json_object_get(s, "timings");
	assert_true(json_real_value(json_object_get(timings, "prompt_ms")) == 500);
	/* Cached tokens were not computed; the first generated one is the prompt's time. */
	assert_true(json_real_value(json_object_get(timings, "prompt_tokens_per_second")) == 40);
	assert_true(json_real_value(json_object_get(timings, "generate_tokens_per_second")) == 2);
	json_decref(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_figures),
		CASE(test_strings),
		CASE(test_clean),
		CASE(test_sharing),
		CASE(test_residency),
		CASE(test_status_json),
		CASE(test_worker_json),
		CASE(test_memory_json),
		CASE(test_generation_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
