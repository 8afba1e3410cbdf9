/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-screen.h"

#include <string.h>

#include "proto/util/utf8.h"
#include "tests/case.h"
#include "weightctl/top-sample.h"
#include "weightctl/top-text.h"

#define MiB(n) ((uint64_t)(n) << 20)
#define SECONDS(n) ((uint64_t)(n)*1000000000)

enum { N_WORKERS = 3, NOW_S = 1000 };

static struct weights_client_device devices[2];
static struct top_sample_worker workers[N_WORKERS];
static struct top_sample_worker *list[N_WORKERS];
static struct top_sample sample;

static void fill_load(struct worker_client_status *s)
{
	s->n_roles = 1;
	s->roles[0].n_spills = 2;
	s->n_queued = 1;
	s->kv_pages = 64;
	s->kv_used_pages = 12;
	s->kv_shared_pages = 3;
	s->kv_cached_pages = 4;
	s->n_prefixes = 5;
	s->n_sessions_listed = 3;
	s->sessions[0] = (struct worker_client_session){.session = 1,
		.client = 9,
		.state = WORKER_CLIENT_DECODING,
		.n_tokens = 120,
		.n_cached = 119,
		.tokens_per_second = 12.34f};
	s->sessions[1] = (struct worker_client_session){
		.session = 2, .client = 9, .state = WORKER_CLIENT_PROMPT, .n_tokens = 7};
	s->sessions[2] = (struct worker_client_session){
		.session = 1ull << 40, .client = 10, .state = WORKER_CLIENT_IDLE};
}

static int fill(void **state)
{
	(void)state;
	memset(workers, 0, sizeof(workers));
	devices[0] = (struct weights_client_device){.name = "Imaginary",
		.has_account = true,
		.account = {MiB(1024), MiB(512), MiB(256), 3}};
	devices[1] = (struct weights_client_device){.name = "Other"};
	for (uint32_t i = 0; i < N_WORKERS; i++)
		list[i] = &workers[i];
	workers[0].pid = 1234567;
	workers[0].socket = (char *)"/run/a.sock";
	workers[0].has_status = true;
	workers[0].status = (struct worker_client_status){.pid = 1,
		.model = "atlas\033[31m",
		.generation = 4,
		.device = "Imaginary",
		.n_sessions = 3,
		.max_sessions = 4};
	workers[0].rates =
		(struct top_sample_rates){.prompt = 1234.56, .generated = 20, .found = 0.971};
	fill_load(&workers[0].status);
	workers[1].pid = 12;
	workers[1].socket = (char *)"/run/b\nsock";
	workers[1].contact.asked_ns = SECONDS(NOW_S - 5);
	workers[2].pid = 13;
	workers[2].socket = (char *)"/c";
	snprintf(workers[2].contact.trouble, sizeof(workers[2].contact.trouble), "/c: refused");
	sample = (struct top_sample){
		.has_weightd = true,
		.weightd = {.pid = 3,
			.build = (char *)"0.1",
			.uptime_ns = SECONDS(30),
			.n_models = 1,
			.n_devices = 2,
			.devices = devices},
		.n_workers = N_WORKERS,
		.workers = list,
	};
	return case_setup(state);
}

#define FILLED(f) cmocka_unit_test_setup_teardown(f, fill, case_teardown)

static struct top_screen draw(uint32_t width, uint32_t height, uint32_t selected)
{
	const struct top_screen_view view = {
		.width = width, .height = height, .selected = selected, .now_ns = SECONDS(NOW_S)};
	struct top_screen s;

	assert_int_equal(top_screen_draw(&sample, &view, &s), 0);
	return s;
}

static char *join(const struct top_screen *s)
{
	static char text[8192];
	char *at = text;

	*at = '\0';
	for (uint32_t i = 0; i < s->n_lines; i++)
		at += snprintf(at, (size_t)(text + sizeof(text) - at), "%s\n", s->lines[i].text);
	return text;
}

static void test_picture(void **state)
{
	static const char expected[] =
		"weightd pid 3, up 30.0 s, 1 model, 3 workers\n"
		"device 0: budget 1.0 GiB, weights 512.0 MiB, reserved 256.0 MiB, free 256.0 MiB, "
		"3 "
		"waiting; Imaginary\n"
		"device 1: Other\n"
		"  PID     MODEL          GEN  STATE   SESS    ACT QUEUE PROMPT/S    TOK/S  "
		"KV USE/SHR/CACHE/ALL  SPILL EXPERT PREFIX DEVICE\n"
		"> 1234567 atlas?[31m     4    ready   3/4     2   1       1234.6     20.0  "
		"12/3/4/64             2      97.1% 5      Imaginary\n"
		"  12      -              0    silent  no answer for 5.0 s at /run/b?sock\n"
		"  13      -              0    failed  /c: refused\n"
		"\n"
		"sessions of worker 1234567 at /run/a.sock\n"
		"  SESSION CLIENT  STATE    TOKENS  IN KV      TOK/S\n"
		"  1       9       decoding 120     119         12.3\n"
		"  2       9       prompt   7       0              -\n"
		"  1099511627776 10      idle     0       0              -\n";
	struct top_screen s = draw(200, 50, 0);

	(void)state;
	assert_string_equal(join(&s), expected);
	assert_int_equal(s.lines[3].style, TOP_SCREEN_HEAD);
	assert_int_equal(s.lines[4].style, TOP_SCREEN_SELECTED);
	assert_int_equal(s.lines[5].style, TOP_SCREEN_PLAIN);
	top_screen_fini(&s);
	/* One that has not answered yet has no sessions to show. */
	s = draw(200, 50, 1);
	assert_null(strstr(join(&s), "sessions of"));
	assert_int_equal(s.lines[5].style, TOP_SCREEN_SELECTED);
	top_screen_fini(&s);
}

/* Without a terminal nothing is selected, and all sessions are there. */
static void test_table(void **state)
{
	struct top_screen s;

	(void)state;
	workers[1] = workers[0];
	workers[1].pid = 12;
	workers[1].status.is_parked = true;
	workers[1].status.kv_pages = 0;
	workers[1].rates = (struct top_sample_rates){-1, -1, -1};
	workers[2].contact.trouble[0] = '\0';
	s = draw(0, 0, 0);
	assert_non_null(strstr(join(&s), "\n  1234567 atlas"));
	assert_non_null(strstr(join(&s), "sessions of worker 1234567 "));
	assert_non_null(strstr(join(&s), "sessions of worker 12 "));
	assert_non_null(strstr(join(&s), " parked  3/4     2   1            -        -  -      "));
	assert_non_null(strstr(join(&s), "\n  13      -              0    asked"));
	top_screen_fini(&s);
	workers[2].socket = (char *)"";
	s = draw(0, 0, 0);
	assert_non_null(strstr(join(&s), "\n  13      -              0    new"));
	top_screen_fini(&s);
	sample.n_workers = 0;
	s = draw(0, 0, 0);
	assert_non_null(strstr(join(&s), "\n  no workers\n"));
	top_screen_fini(&s);
}

static void test_weightd(void **state)
{
	struct top_screen s;

	(void)state;
	sample.contact.asked_ns = SECONDS(NOW_S - 70);
	s = draw(200, 50, 0);
	assert_string_equal(s.lines[0].text,
		"weightd pid 3, up 30.0 s, 1 model, 3 workers: no answer for 1 min 10 s");
	top_screen_fini(&s);
	sample.contact.asked_ns = 0;
	snprintf(sample.contact.trouble, sizeof(sample.contact.trouble), "refused\a");
	sample.weightd = (struct weights_client_status){0};
	s = draw(200, 50, 0);
	assert_string_equal(s.lines[0].text, "weightd: refused?");
	top_screen_fini(&s);
	sample.contact.trouble[0] = '\0';
	s = draw(200, 50, 0);
	assert_string_equal(s.lines[0].text, "weightd: asked");
	top_screen_fini(&s);
	sample.has_weightd = false;
	s = draw(200, 50, 0);
	assert_memory_equal(s.lines[0].text, "  PID ", 6);
	top_screen_fini(&s);
}

/* Of every size: no more lines, none longer, whole characters, and the selected worker there. */
static void test_sizes(void **state)
{
	(void)state;
	snprintf(workers[0].status.device, sizeof(workers[0].status.device),
		"\xe5\x9b\xbd\xe5\xae\xb6 e\xcc\x81t\xc3\xa9 \xff\xc2\x9b");
	snprintf(workers[0].status.model, sizeof(workers[0].status.model),
		"\xe5\x9b\xbd\xe5\xae\xb6\xe5\x9b\xbd\xe5\xae\xb6\xe5\x9b\xbd\xe5\xae\xb6\xe5\x9b"
		"\xbd"
		"\xe5\xae\xb6");
	for (uint32_t width = 1; width < 160; width++) {
		for (uint32_t height = 1; height < 20; height++) {
			struct top_screen s = draw(width, height, height % N_WORKERS);
			uint32_t n_selected = 0;

			assert_true(s.n_lines <= height);
			for (uint32_t i = 0; i < s.n_lines; i++) {
				const char *line = s.lines[i].text;

				n_selected += s.lines[i].style == TOP_SCREEN_SELECTED;
				for (size_t at = 0, n = strlen(line); at < n;) {
					int n_char = utf8_char((const uint8_t *)line + at, n - at);

					assert_true(n_char > 0 && !utf8_control(line + at));
					at += (size_t)n_char;
				}
				struct top_text t = {0};
				top_text_add_name(&t, line, 1000);
				assert_true(t.n_columns <= width);
			}
			assert_int_equal(n_selected, height > 4);
			top_screen_fini(&s);
		}
	}
}

static void test_more_sessions(void **state)
{
	struct top_screen s;

	(void)state;
	workers[0].status.n_sessions_listed = 100;
	for (uint32_t i = 0; i < 100; i++)
		workers[0].status.sessions[i] = (struct worker_client_session){.session = i + 1};
	s = draw(80, 20, 0);
	assert_int_equal(s.n_lines, 20);
	assert_string_equal(s.lines[19].text, "  and 91 more");
	top_screen_fini(&s);
}

static const char *show(const char *name, uint32_t max_columns)
{
	static struct top_text t;

	t = (struct top_text){0};
	top_text_add_name(&t, name, max_columns);
	assert_true(t.n_columns <= max_columns);
	assert_int_equal(t.n_bytes, strlen(t.text));
	return t.text;
}

static void test_names(void **state)
{
	(void)state;
	assert_string_equal(show(NULL, 5), "");
	assert_string_equal(show("abcde", 5), "abcde");
	assert_string_equal(show("abcdef", 5), "abcd~");
	assert_string_equal(show("abcdef", 1), "~");
	assert_string_equal(show("a\033[2Jb", 9), "a?[2Jb");
	assert_string_equal(show("a\xc2\x9b"
				 "b",
				    9),
		"a?b");
	/* A cut character, and one that turns the rest of the line around. */
	assert_string_equal(show("a\xe5\x9b", 9), "a??");
	assert_string_equal(show("a\xe2\x80\xae"
				 "b",
				    9),
		"a?b");
	/* Two columns each: a third does not fit in beside the mark. */
	assert_string_equal(
		show("\xe5\x9b\xbd\xe5\xae\xb6\xe5\x9b\xbd", 5), "\xe5\x9b\xbd\xe5\xae\xb6~");
	assert_string_equal(show("\xe5\x9b\xbd\xe5\xae\xb6\xe5\x9b\xbd", 4), "\xe5\x9b\xbd~");
	/* None: it stays with its letter. */
	assert_string_equal(show("e\xcc\x81", 1), "e\xcc\x81");
}

/* However long what is added. */
static void test_long(void **state)
{
	static char name[3 * TOP_TEXT_MAX_BYTES];
	struct top_text t = {0};

	(void)state;
	memset(name, 'x', sizeof(name) - 1);
	top_text_add_name(&t, name, UINT32_MAX);
	assert_int_equal(t.n_bytes, TOP_TEXT_MAX_BYTES - 1);
	top_text_add(&t, "%s", name);
	top_text_pad(&t, UINT32_MAX);
	assert_int_equal(strlen(t.text), TOP_TEXT_MAX_BYTES - 1);
	top_text_cut(&t, 3);
	assert_string_equal(t.text, "xxx");
	top_text_pad(&t, 5);
	top_text_add(&t, "%d", 7);
	assert_string_equal(t.text, "xxx  7");
	t = (struct top_text){0};
	top_text_add(&t, "%s", name);
	assert_int_equal(strlen(t.text), TOP_TEXT_MAX_BYTES - 1);
	assert_int_equal(t.n_columns, TOP_TEXT_MAX_BYTES - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILLED(test_picture),
		FILLED(test_table),
		FILLED(test_weightd),
		FILLED(test_sizes),
		FILLED(test_more_sessions),
		CASE(test_names),
		CASE(test_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
