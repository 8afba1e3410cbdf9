/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/map-text.h"

#include <string.h>

#include "proto/manifest.h"
#include "tests/case.h"

#define MiB(n) ((uint64_t)(n) << 20)

static const struct map_text_tensor tensors[] = {
	{"blk.0.attn_norm.weight", MiB(1), MANIFEST_PLACEMENT_DEVICE},
	{"blk.0.attn_q.weight", MiB(30), MANIFEST_PLACEMENT_DEVICE},
	{"blk.0.ffn_gate_exps.weight", MiB(30), MANIFEST_PLACEMENT_STAGED},
	{"blk.0.ffn_up_exps.weight", MiB(30), MANIFEST_PLACEMENT_PINNED},
	{"blk.10.ffn_gate_inp.weight", MiB(1), MANIFEST_PLACEMENT_DEVICE},
	{"blk.2.ffn_down.weight", MiB(6), MANIFEST_PLACEMENT_PAGED},
	{"blk.2.strange", MiB(1), MANIFEST_PLACEMENT_PAGED},
	{"token_embd.weight", MiB(1), MANIFEST_PLACEMENT_DEVICE},
	{"blk.x\033[31m", MiB(0), MANIFEST_PLACEMENT_DEVICE},
};
static const struct map_text_heap heaps[] = {
	{.n_bytes = MiB(1024), .weights_bytes = MiB(512), .device_local = true},
	{.n_bytes = MiB(102400), .weights_bytes = 1},
	{.n_bytes = 0},
};

static char *print(const struct map_text *m)
{
	char *text = NULL;
	size_t n_bytes = 0;
	FILE *out = open_memstream(&text, &n_bytes);

	assert_non_null(out);
	map_text_print(m, out);
	assert_int_equal(fclose(out), 0);
	return text;
}

static void test_picture(void **state)
{
	static const char expected[] =
		"heap 0   [################................] 512.0 MiB of weights in 1.0 GiB, "
		"device-local\n"
		"heap 1   [#...............................] 0.0 KiB of weights in 100.0 GiB\n"
		"heap 2   [................................] 0.0 KiB of weights in 0.0 KiB\n"
		"D device [DDDDDDDDDDD.....................]  33.0%  33.0 MiB in 2 allocations\n"
		"P pinned [PPPPPPPPPP......................]  30.0%  30.0 MiB in 1 allocation\n"
		"S staged [SSSSSSSSSS......................]  30.0%  30.0 MiB in 3 allocations\n"
		"G paged  [GG..............................]   7.0%  7.0 MiB in 1 allocation\n"
		"total   100.0 MiB in 9 tensors\n"
		"\n"
		"            norm    attn    router  experts ffn     other   bytes\n"
		"layer 0     D       D       -       PS      -       -       91.0 MiB\n"
		"layer 2     -       -       -       -       G       G       7.0 MiB\n"
		"layer 10    -       -       D       -       -       -       1.0 MiB\n"
		"\n"
		"token_embd.weight                        D  1.0 MiB\n"
		"blk.x?[31m                               D  0.0 KiB\n";
	struct map_text m = {.tensors = tensors,
		.n_tensors = ARRAY_SIZE(tensors),
		.heaps = heaps,
		.n_heaps = ARRAY_SIZE(heaps),
		.n_allocs = {[MANIFEST_PLACEMENT_DEVICE] = 2,
			[MANIFEST_PLACEMENT_PINNED] = 1,
			[MANIFEST_PLACEMENT_STAGED] = 3,
			[MANIFEST_PLACEMENT_PAGED] = 1}};
	char *text;

	(void)state;
	text = print(&m);
	assert_string_equal(text, expected);
	free(text);
	m.has_color = true;
	text = print(&m);
	assert_non_null(strstr(text, "\033[32mD\033[0m"));
	assert_null(strstr(text, "blk.x\033"));
	free(text);
}

static void test_nothing(void **state)
{
	const struct map_text m = {0};
	char *text = print(&m);

	(void)state;
	assert_string_equal(text, "total   0.0 KiB in 0 tensors\n");
	free(text);
}

static void test_names(void **state)
{
	static const struct {
		const char *name;
		uint32_t layer;
		enum map_text_group group;
	} rows[] = {
		{"blk.7.attn_q_norm.weight", 7, MAP_TEXT_NORM},
		{"blk.7.attn_output.weight", 7, MAP_TEXT_ATTENTION},
		{"blk.93.ffn_down_exps.weight", 93, MAP_TEXT_EXPERTS},
		{"blk.0.ffn_gate_inp.weight", 0, MAP_TEXT_ROUTER},
		{"blk.0.ffn_up.weight", 0, MAP_TEXT_FFN},
		{"blk.0.", 0, MAP_TEXT_OTHER},
	};
	static const char *const others[] = {"", "blk.", "blk.1", "blk.-1.x", "output.weight"};
	enum map_text_group group;
	uint32_t layer;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		assert_true(map_text_read_name(rows[i].name, &layer, &group));
		assert_int_equal(layer, rows[i].layer);
		assert_int_equal(group, rows[i].group);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(others); i++)
		assert_false(map_text_read_name(others[i], &layer, &group));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_picture),
		CASE(test_nothing),
		CASE(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
