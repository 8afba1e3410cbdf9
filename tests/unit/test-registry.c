/* SPDX-License-Identifier: Apache-2.0 */
/* The registry by example; tests/unit/test-registry-explore.c has every interleaving. */
#include "tests/case.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "proto/util/err.h"
#include "weightd/registry.h"

static void test_names(void **state)
{
	struct err err = ERR_NULL;
	char longest[REGISTRY_NAME_MAX + 2];

	(void)state;
	memset(longest, 'x', sizeof(longest));
	longest[REGISTRY_NAME_MAX + 1] = '\0';
	assert_int_equal(registry_check_name(longest, &err), -EINVAL);
	longest[REGISTRY_NAME_MAX] = '\0';
	assert_int_equal(registry_check_name(longest, NULL), 0);
	assert_int_equal(registry_check_name("Qwen3-0.6B_q8.gguf", NULL), 0);
	assert_int_equal(registry_check_name("", NULL), -EINVAL);
	assert_int_equal(registry_check_name("a/b", NULL), -EINVAL);
	assert_int_equal(registry_check_name("a b", NULL), -EINVAL);
	assert_non_null(strstr(err.text, "1 to 64"));
}

static void test_sentences(void **state)
{
	struct err err = ERR_NULL;
	struct registry *r;
	uint64_t a, b, id;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_acquire(r, "x", 1, 0, &err, &id), -ENOENT);
	assert_string_equal(err.text, "no model x: none is loaded");
	assert_int_equal(registry_load(r, "a", false, NULL, NULL, &a), 0);
	assert_int_equal(registry_load(r, "a", true, NULL, &err, &id), -EBUSY);
	assert_int_equal(registry_acquire(r, "a", 1, 0, NULL, &id), REGISTRY_WAIT);
	registry_loaded(r, a, 1);
	assert_int_equal(registry_load(r, "a", false, NULL, &err, &id), -EEXIST);
	assert_non_null(strstr(err.text, "as generation 1"));
	assert_int_equal(registry_load(r, "b", false, NULL, NULL, &b), 0);
	assert_int_equal(registry_unload(r, "x", &err), -ENOENT);
	assert_string_equal(err.text, "no model x: there are a, b");
	assert_true(registry_is_wanted(r, b));
	assert_int_equal(registry_unload(r, "b", &err), 0);
	assert_false(registry_is_wanted(r, b));
	assert_string_equal(registry_state_name(registry_find(r, b)->state), "draining");
	assert_int_equal(registry_unload(r, "b", &err), -ENOENT);
	assert_string_equal(err.text, "no model b: there is a");
	registry_free(r);
}

static void test_replace_drains(void **state)
{
	struct registry_generation freed;
	struct registry *r;
	uint64_t old, new, id;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_load(r, "a", false, NULL, NULL, &old), 0);
	registry_loaded(r, old, 1);
	assert_int_equal(registry_acquire(r, "a", 1, 5, NULL, &id), 0);
	assert_int_equal(registry_load(r, "a", true, NULL, NULL, &new), 0);
	/* Until the new one is ready the old one serves. */
	assert_int_equal(registry_acquire(r, "a", 2, 5, NULL, &id), 0);
	assert_int_equal(id, old);
	registry_loaded(r, new, 2);
	assert_int_equal(registry_find(r, old)->state, REGISTRY_DRAINING);
	assert_int_equal(registry_acquire(r, "a", 2, 6, NULL, &id), 0);
	assert_int_equal(id, new);
	registry_close(r, 1, 0, 3);
	assert_int_equal(registry_find(r, old)->n_leases, 1);
	registry_close(r, 2, 7, 4);
	assert_int_equal(registry_find(r, old)->state, REGISTRY_HELD);
	assert_false(registry_take_freed(r, &freed));
	registry_exit(r, 7);
	assert_true(registry_take_freed(r, &freed));
	assert_int_equal(freed.id, old);
	assert_int_equal(registry_find(r, new)->state, REGISTRY_READY);
	registry_free(r);
}

/* Does the transition end the process? */
static bool is_refused(enum registry_state state, enum registry_event event)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_DUMPABLE, 0);
		signal(SIGABRT, SIG_DFL);
		fclose(stderr);
		registry_next(state, event);
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_transitions(void **state)
{
	unsigned n_legal = 0;

	(void)state;
	for (unsigned s = 0; s < REGISTRY_N_STATES; s++)
		for (unsigned e = 0; e < REGISTRY_N_EVENTS; e++) {
			n_legal += registry_is_legal(s, e);
			assert_int_equal(is_refused(s, e), !registry_is_legal(s, e));
		}
	assert_int_equal(n_legal, 21);
	assert_int_equal(registry_next(REGISTRY_LOADING, REGISTRY_LOADED), REGISTRY_READY);
	assert_int_equal(registry_next(REGISTRY_WARM, REGISTRY_HEAT), REGISTRY_LOADING);
	assert_false(registry_is_legal(REGISTRY_READY, REGISTRY_RELEASE));
	assert_false(registry_is_legal(REGISTRY_HELD, REGISTRY_HOLD));
}

static void test_least_recently_used(void **state)
{
	struct registry *r;
	uint64_t a, b, c, id;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_load(r, "a", false, NULL, NULL, &a), 0);
	assert_int_equal(registry_load(r, "b", false, NULL, NULL, &b), 0);
	assert_int_equal(registry_load(r, "c", false, NULL, NULL, &c), 0);
	registry_loaded(r, c, 10);
	registry_loaded(r, a, 20);
	registry_loaded(r, b, 30);
	assert_int_equal(registry_find_idle(r, NULL)->id, c);
	/* A lease is use, and its end the time. */
	assert_int_equal(registry_acquire(r, "c", 1, 40, NULL, &id), 0);
	assert_int_equal(registry_find_idle(r, NULL)->id, a);
	registry_close(r, 1, 0, 50);
	assert_int_equal(registry_find_idle(r, registry_find(r, b))->id, c);
	/* A pin outlives the generation it was made for. */
	assert_int_equal(registry_pin(r, "a", true, NULL), 0);
	assert_int_equal(registry_load(r, "a", true, NULL, NULL, &a), 0);
	registry_loaded(r, a, 60);
	assert_true(registry_find(r, a)->is_pinned);
	assert_int_equal(registry_find_idle(r, NULL)->id, b);
	assert_false(registry_cool(r, a));
	assert_true(registry_cool(r, b));
	assert_int_equal(registry_acquire(r, "b", 1, 70, NULL, &id), REGISTRY_WAIT);
	assert_int_equal(registry_heat(r, b), 0);
	assert_int_equal(registry_acquire(r, "b", 1, 70, NULL, &id), REGISTRY_WAIT);
	registry_loaded(r, b, 80);
	assert_int_equal(registry_acquire(r, "b", 1, 90, NULL, &id), 0);
	assert_int_equal(id, b);
	registry_free(r);
}

/* Ids of what came and went before a restart are not given to something else. */
static void test_ids_after_a_restart(void **state)
{
	struct err err = ERR_NULL;
	struct registry *r;
	uint64_t id;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_adopt(r, 5, "a", REGISTRY_READY, NULL, 1, NULL), 0);
	assert_int_equal(registry_adopt(r, 3, "a", REGISTRY_HELD, NULL, 1, NULL), 0);
	assert_int_equal(registry_adopt(r, 3, "b", REGISTRY_READY, NULL, 1, &err), -EINVAL);
	assert_int_equal(registry_adopt(r, 6, "a", REGISTRY_READY, NULL, 1, &err), -EINVAL);
	assert_int_equal(registry_adopt(r, 6, "b", REGISTRY_LOADING, NULL, 1, &err), -EINVAL);
	assert_int_equal(registry_adopt(r, 6, "a", REGISTRY_WARM, NULL, 1, &err), -EINVAL);
	assert_int_equal(registry_at(r, 0)->id, 3);
	assert_int_equal(registry_load(r, "b", false, NULL, NULL, &id), 0);
	assert_int_equal(id, 6);
	registry_set_last_id(r, 9);
	assert_int_equal(registry_load(r, "c", false, NULL, NULL, &id), 0);
	assert_int_equal(id, 10);
	assert_int_equal(registry_adopt_hold(r, 7, 1, 1), -ENOENT);
	assert_int_equal(registry_resume(r, 7, 1, 0, 1, &err), -ENOENT);
	registry_free(r);
}

/* Who held what is lost by now comes back for it, to let it go. */
static void test_resume_of_what_is_lost(void **state)
{
	struct err err = ERR_NULL;
	struct registry *r;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_adopt(r, 6, "a", REGISTRY_READY, NULL, 1, NULL), 0);
	assert_int_equal(registry_adopt_hold(r, 6, 77, 1), 0);
	registry_lose(r, 6);
	assert_int_equal(registry_resume(r, 6, 9, 77, 1, &err), 0);
	assert_int_equal(registry_find(r, 6)->state, REGISTRY_LOST);
	assert_int_equal(registry_find(r, 6)->n_leases, 1);
	assert_int_equal(registry_find(r, 6)->n_holds, 0);
	registry_end_returns(r);
	assert_int_equal(registry_release(r, 6, 9, 77, 2, &err), 0);
	assert_int_equal(registry_find(r, 6)->state, REGISTRY_ABSENT);
	registry_free(r);
}

static void test_warm_after_a_restart(void **state)
{
	struct err err = ERR_NULL;
	struct registry *r;
	uint64_t id;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_adopt(r, 5, "a", REGISTRY_WARM, NULL, 1, NULL), 0);
	assert_int_equal(registry_adopt(r, 6, "a", REGISTRY_WARM, NULL, 1, &err), -EINVAL);
	assert_int_equal(registry_adopt(r, 6, "a", REGISTRY_READY, NULL, 1, &err), -EINVAL);
	assert_int_equal(registry_acquire(r, "a", 1, 2, &err, &id), REGISTRY_WAIT);
	assert_int_equal(registry_resume(r, 5, 1, 0, 2, &err), -ENOENT);
	assert_int_equal(registry_heat(r, 5), 0);
	registry_end_returns(r);
	registry_loaded(r, 5, 3);
	assert_int_equal(registry_acquire(r, "a", 1, 4, &err, &id), 0);
	assert_int_equal(id, 5);
	registry_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_names),
		CASE(test_transitions),
		CASE(test_sentences),
		CASE(test_replace_drains),
		CASE(test_least_recently_used),
		CASE(test_ids_after_a_restart),
		CASE(test_resume_of_what_is_lost),
		CASE(test_warm_after_a_restart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
