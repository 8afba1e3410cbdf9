/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/baton.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/baton.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"

/* Longest that a turn is waited for, whatever happens meanwhile: then it goes without. */
#define MAX_WAIT_NS (16 * BATON_PATIENCE_NS)

/* So many workers passed by in a row, and it does without a baton for so long. */
enum { MAX_PASSED = 2 };

/* Steps of so many turns hold the others up for more than slices of time would. */
enum { MAX_STEP_TURNS = 4 };
#define ALONE_NS UINT64_C(1000000000)

/*
 * Whoever waits for more than this of a second does without, too: a crowd, or one that writes there
 * what it likes, costs a worker no more than that second of two.
 */
#define WINDOW_NS UINT64_C(1000000000)
#define MAX_WINDOW_WAIT_NS (WINDOW_NS / 8 * 7)
enum { MAX_WAKES = 256 }; /* in one wait: more than there are places for */

struct baton {
	struct baton_memory *memory;
	uint32_t self;
	uint64_t turn_ns;
	bool is_held;
	uint64_t taken_ns; /* when the turn began */
	uint64_t step_ns;  /* of the last step; 0: of none yet */
	uint32_t n_passed; /* in a row */
	uint64_t alone_until_ns;
	uint64_t window_ns; /* since when waits are summed */
	uint64_t window_wait_ns;
	struct baton_counters counters;
};

static int map(int fd, struct err *ret_err, struct baton_memory **ret_memory)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	/* Else whoever has it could take the pages away. */
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 || st.st_size < BATON_BYTES)
		return err_set(ret_err, EPROTO,
			"baton: expected a memfd of %d bytes, sealed against shrinking",
			BATON_BYTES);
	void *memory = mmap(NULL, BATON_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return err_set(ret_err, errno, "baton: %s", strerror(errno));
	*ret_memory = memory;
	return 0;
}

int baton_new(int fd, uint64_t turn_ns, struct err *ret_err, struct baton **ret_baton)
{
	struct baton *b = calloc(1, sizeof(*b));
	int r = b ? 0 : err_set(ret_err, ENOMEM, "baton: no memory");

	if (!r && getrandom(&b->self, sizeof(b->self), 0) != sizeof(b->self))
		r = err_set(ret_err, EIO, "baton: the system gave no random number");
	if (!r)
		r = map(fd, ret_err, &b->memory);
	if (r) {
		free(b);
		return r;
	}
	b->self += b->self == 0;
	b->turn_ns = turn_ns;
	close(fd);
	*ret_baton = b;
	return 0;
}

struct baton *baton_free(struct baton *b)
{
	if (!b)
		return NULL;
	baton_rest(b);
	munmap(b->memory, BATON_BYTES);
	free(b);
	return NULL;
}

/* ---- the memory ---- */

static void sleep_while(struct baton *b, uint32_t holder, uint64_t timeout_ns)
{
	const struct timespec t = {
		(time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};

	syscall(SYS_futex, &b->memory->holder, FUTEX_WAIT, holder, &t, NULL, 0);
}

static bool change_holder(struct baton *b, uint32_t from, uint32_t to)
{
	return atomic_compare_exchange_strong(&b->memory->holder, &from, to);
}

static void leave_place(struct baton *b, uint32_t worker)
{
	for (uint32_t i = 0; i < BATON_N_PLACES; i++) {
		uint32_t other = worker;

		atomic_compare_exchange_strong(&b->memory->places[i].worker, &other, 0);
	}
}

/* Without one it is found by chance. */
static void enter_place(struct baton *b)
{
	for (uint32_t i = 0; i < BATON_N_PLACES; i++) {
		struct baton_place *place = &b->memory->places[i];
		uint32_t nobody = 0;

		if (!atomic_compare_exchange_strong(&place->worker, &nobody, b->self))
			continue;
		atomic_store(&place->arrival, atomic_fetch_add(&b->memory->n_arrivals, 1));
		return;
	}
}

/* Who has waited longest, of others; 0: nobody waits. */
static uint32_t find_next(const struct baton *b)
{
	uint32_t now = atomic_load(&b->memory->n_arrivals), next = 0, longest = 0;

	for (uint32_t i = 0; i < BATON_N_PLACES; i++) {
		uint32_t worker = atomic_load(&b->memory->places[i].worker);
		uint32_t waited = now - atomic_load(&b->memory->places[i].arrival);

		if (!worker || worker == b->self || (next && waited <= longest))
			continue;
		next = worker;
		longest = waited;
	}
	return next;
}

/* ---- turns ---- */

static void go_alone(struct baton *b, uint64_t now_ns)
{
	log_debug("baton: on without it for a while");
	b->n_passed = 0;
	b->alone_until_ns = now_ns + ALONE_NS;
	b->window_wait_ns = 0;
	baton_rest(b);
}

static void begin_turn(struct baton *b, bool has_passed)
{
	b->is_held = true;
	b->taken_ns = clock_now_ns();
	b->counters.n_turns++;
	b->n_passed = has_passed ? b->n_passed + 1 : 0;
	b->counters.n_passed += has_passed;
	if (b->n_passed >= MAX_PASSED)
		go_alone(b, b->taken_ns);
}

/* A wait that began then is over. */
static void note_wait(struct baton *b, uint64_t start_ns, uint64_t waited_ns)
{
	b->counters.n_waits++;
	b->counters.wait_ns += waited_ns;
	if (start_ns - b->window_ns >= WINDOW_NS) {
		b->window_ns = start_ns;
		b->window_wait_ns = 0;
	}
	b->window_wait_ns += waited_ns;
}

/* True when it has the baton, at the latest after some time in which nobody handed it on. */
static bool wait_for_turn(struct baton *b, bool *ret_has_passed)
{
	uint64_t start_ns = clock_now_ns(), seen_ns = start_ns;
	uint32_t seen = 0;

	*ret_has_passed = false;
	for (uint32_t n_wakes = 0; n_wakes < MAX_WAKES; n_wakes++) {
		uint32_t holder = atomic_load(&b->memory->holder);
		uint64_t now_ns = clock_now_ns();

		if (holder == b->self || (holder == 0 && change_holder(b, 0, b->self)))
			return true;
		if (holder == 0)
			continue;
		if (holder != seen) {
			seen = holder;
			seen_ns = now_ns;
		}
		if (now_ns - start_ns >= MAX_WAIT_NS)
			return false;
		if (now_ns - seen_ns >= BATON_PATIENCE_NS) {
			*ret_has_passed = change_holder(b, holder, b->self);
			if (!*ret_has_passed)
				continue;
			/* It may have died waiting; if it lives, it comes again. */
			leave_place(b, holder);
			return true;
		}
		sleep_while(b, holder, seen_ns + BATON_PATIENCE_NS - now_ns);
	}
	return false;
}

bool baton_is_short(const struct baton *b, uint64_t step_ns)
{
	return !b || step_ns <= MAX_STEP_TURNS * b->turn_ns;
}

uint64_t baton_begin(struct baton *b, bool is_short)
{
	bool has_passed = false;

	if (!b)
		return 0;
	if (!is_short || clock_now_ns() < b->alone_until_ns) {
		baton_rest(b);
		return 0;
	}
	/* It may have been passed by itself, when a step took long. */
	if (b->is_held && atomic_load(&b->memory->holder) == b->self)
		return 0;
	if (change_holder(b, 0, b->self)) {
		begin_turn(b, false);
		return 0;
	}
	uint64_t start_ns = clock_now_ns();
	enter_place(b);
	bool has_turn = wait_for_turn(b, &has_passed);
	leave_place(b, b->self);
	uint64_t waited_ns = clock_now_ns() - start_ns;
	note_wait(b, start_ns, waited_ns);
	b->is_held = false;
	if (has_turn)
		begin_turn(b, has_passed);
	if (!has_turn || b->window_wait_ns > MAX_WINDOW_WAIT_NS)
		go_alone(b, start_ns + waited_ns);
	return waited_ns;
}

bool baton_would_wait(const struct baton *b)
{
	if (!b)
		return false;
	uint32_t holder = atomic_load(&b->memory->holder);
	return holder != 0 && !(b->is_held && holder == b->self) &&
	       clock_now_ns() >= b->alone_until_ns;
}

bool baton_may_go_on(const struct baton *b, bool is_short)
{
	if (!b)
		return true;
	if (!b->is_held)
		return !is_short || clock_now_ns() < b->alone_until_ns;
	/* It may have been passed by itself. */
	return atomic_load(&b->memory->holder) == b->self &&
	       (!find_next(b) || clock_now_ns() + 2 * b->step_ns <= b->taken_ns + b->turn_ns);
}

void baton_end(struct baton *b, uint64_t step_ns, bool is_last)
{
	if (!b || !b->is_held)
		return;
	b->step_ns = step_ns;
	if (is_last && clock_now_ns() + step_ns > b->taken_ns + b->turn_ns && find_next(b))
		baton_rest(b);
}

void baton_rest(struct baton *b)
{
	if (!b || !b->is_held)
		return;
	b->is_held = false;
	/* Who begins to wait behind this look finds that nobody holds it. */
	if (change_holder(b, b->self, find_next(b)))
		syscall(SYS_futex, &b->memory->holder, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void baton_get_counters(const struct baton *b, struct baton_counters *ret_counters)
{
	*ret_counters = b ? b->counters : (struct baton_counters){0};
}
