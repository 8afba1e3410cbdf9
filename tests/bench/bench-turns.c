/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes that decode beside each other get of a device on which they take turns: 1, 2 and 4
 * of them each submit a step of X ms (short dispatches that wait for each other), wait for it, do
 * nothing for G us and submit the next, with up to DEPTH steps under way. The total rate is printed
 * as a share of one process's with the same X, G, depth and way of waiting.
 *
 *	bench-turns [STEPS_MS [GAPS_US [DEPTHS [WAITS [SECONDS]]]]]
 *
 * Lists are separated by commas. How a process waits: `poll`, `sleep` (what vk_submit_wait does),
 * `nap`, which sleeps for most of the time that a step takes alone and polls then.
 *WEIGHTD_TEST_DEVICE as for the tests.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/util/clock.h"
#include "tests/vulkan/on-device.h"

static const uint32_t turns_spirv[] =
#include "turns.comp.inc"
	;

enum { MAX_BESIDE = 4, MAX_DEPTH = 4, MAX_VALUES = 8, N_SAMPLE = 256, TIMEOUT_S = 600 };

/* Workgroups of a dispatch: several for each core of a large device, one for a processor's. */
enum { N_GROUPS = 528, SOFTWARE_N_GROUPS = 2 };

/* A dispatch of a decode step, and what computes before anything is counted: clocks rise. */
#define DISPATCH_NS 8000.0
#define WARM_NS UINT64_C(700000000)

enum wait { WAIT_POLL, WAIT_SLEEP, WAIT_NAP, WAIT_N };

static const char *const wait_names[WAIT_N] = {"poll", "sleep", "nap"};

struct push {
	uint64_t dst;
	uint32_t n_rounds;
	uint32_t pad;
};

/* What all processes do next; n_active 0: they end. */
struct turn {
	uint32_t n_active;
	uint32_t depth;
	enum wait wait;
	double step_ms;
	uint64_t gap_ns;
	uint64_t start_ns, count_ns, end_ns; /* steps that end from count_ns on are counted */
};

struct shared {
	pthread_barrier_t barrier; /* of the parent and all children */
	struct turn turn;
	uint32_t n_rounds; /* of a dispatch, 0: to be found by child 0 */
	double dispatch_ns;
	double step_ns; /* of the device alone, by its own clock */
	uint32_t n_steps[MAX_BESIDE];
};

struct process {
	struct shared *shared;
	struct vk_device *d;
	struct vk_memory *memory;
	struct vk_pipeline *pipeline;
	struct vk_command *commands[MAX_DEPTH];
	uint32_t n_groups;
	double step_ms; /* that they are recorded for */
};

struct list {
	uint32_t n;
	double values[MAX_VALUES];
};

/* ---- a process ---- */

static void record(
	struct process *p, struct vk_command *c, uint32_t n_dispatches, uint32_t n_rounds)
{
	const struct push push = {.dst = vk_memory_get_address(p->memory), .n_rounds = n_rounds};
	struct err e = ERR_NULL;

	vk_command_begin(c);
	vk_command_stamp(c, 0);
	for (uint32_t i = 0; i < n_dispatches; i++) {
		vk_command_dispatch(c, p->pipeline, &push, sizeof(push), p->n_groups, 1, 1);
		vk_command_barrier(c);
	}
	vk_command_stamp(c, 1);
	on_device_check(vk_command_end(c, &e), &e, "end");
}

static uint64_t submit(struct process *p, struct vk_command *c)
{
	struct err e = ERR_NULL;
	uint64_t ticket = 0;

	on_device_check(vk_submit(p->d, &c, 1, &e, &ticket), &e, "submit");
	return ticket;
}

static void await(struct process *p, uint64_t ticket)
{
	if (vk_submit_wait(p->d, ticket, UINT64_MAX))
		fail_msg("wait");
}

static double time_alone(struct process *p, struct vk_command *c)
{
	uint64_t stamps[2];

	await(p, submit(p, c));
	if (vk_command_get_stamps(c, stamps))
		fail_msg("timestamps");
	return (double)(stamps[1] - stamps[0]);
}

/* How many rounds a dispatch has that takes DISPATCH_NS, once the device is awake. */
static void calibrate(struct process *p)
{
	struct shared *s = p->shared;
	uint64_t until_ns = clock_now_ns() + WARM_NS;
	uint32_t n_rounds = 64;
	double ns = 0;

	do {
		record(p, p->commands[0], N_SAMPLE, n_rounds);
		ns = time_alone(p, p->commands[0]) / N_SAMPLE;
		if (ns < DISPATCH_NS)
			n_rounds += n_rounds / 8;
		else
			n_rounds -= n_rounds / 10;
	} while (clock_now_ns() < until_ns || (ns < DISPATCH_NS / 2 && n_rounds < 1 << 15));
	record(p, p->commands[0], N_SAMPLE, n_rounds);
	s->dispatch_ns = time_alone(p, p->commands[0]) / N_SAMPLE;
	s->n_rounds = n_rounds;
}

static void prepare(struct process *p)
{
	const struct turn *t = &p->shared->turn;
	double n = t->step_ms * 1e6 / p->shared->dispatch_ns;

	if (p->step_ms != t->step_ms)
		for (uint32_t i = 0; i < MAX_DEPTH; i++)
			record(p, p->commands[i], n < 1 ? 1 : (uint32_t)n, p->shared->n_rounds);
	p->step_ms = t->step_ms;
}

static void spin_until(uint64_t ns)
{
	while (clock_now_ns() < ns)
		;
}

static void wait_for(struct process *p, uint64_t ticket, uint64_t since_ns)
{
	const struct turn *t = &p->shared->turn;
	uint64_t until_ns = since_ns + (uint64_t)(p->shared->step_ns * 0.85);

	if (t->wait == WAIT_SLEEP) {
		await(p, ticket);
		return;
	}
	if (t->wait == WAIT_NAP && clock_now_ns() < until_ns) {
		const struct timespec at = {
			(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}
	while (!vk_submit_is_done(p->d, ticket))
		;
}

static void take_turns(struct process *p, uint32_t *ret_n_steps)
{
	const struct turn *t = &p->shared->turn;
	uint64_t tickets[MAX_DEPTH];
	uint32_t n_given = 0, n_done = 0;
	uint64_t now_ns, since_ns = t->start_ns;

	spin_until(t->start_ns);
	*ret_n_steps = 0;
	do {
		while (n_given - n_done < t->depth) {
			tickets[n_given % t->depth] = submit(p, p->commands[n_given % t->depth]);
			n_given++;
		}
		wait_for(p, tickets[n_done++ % t->depth], since_ns);
		since_ns = now_ns = clock_now_ns();
		*ret_n_steps += now_ns >= t->count_ns && now_ns < t->end_ns;
		if (t->gap_ns)
			spin_until(now_ns + t->gap_ns);
	} while (now_ns < t->end_ns);
	for (; n_done < n_given; n_done++)
		await(p, tickets[n_done % t->depth]);
}

static void be_process(struct shared *s, uint32_t i)
{
	struct process p = {.shared = s, .d = on_device_new()};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_TIMERSLACK, 1);
	p.n_groups = vk_device_get_info(p.d)->is_software ? SOFTWARE_N_GROUPS : N_GROUPS;
	p.memory = on_device_memory(p.d, VK_MEMORY_SCRATCH, 256, false);
	p.pipeline = ON_DEVICE_PIPELINE(p.d, turns_spirv, sizeof(struct push));
	for (uint32_t k = 0; k < MAX_DEPTH; k++)
		p.commands[k] = on_device_command(p.d, 2);
	pthread_barrier_wait(&s->barrier);
	if (i == 0)
		calibrate(&p);
	for (;;) {
		pthread_barrier_wait(&s->barrier); /* what is next has been said */
		if (s->turn.n_active == 0)
			break;
		if (i < s->turn.n_active)
			prepare(&p);
		if (i == 0)
			s->step_ns = time_alone(&p, p.commands[0]);
		pthread_barrier_wait(&s->barrier); /* all are ready */
		pthread_barrier_wait(&s->barrier); /* the time has been said */
		if (i < s->turn.n_active)
			take_turns(&p, &s->n_steps[i]);
		pthread_barrier_wait(&s->barrier); /* all are done */
	}
	for (uint32_t k = 0; k < MAX_DEPTH; k++)
		vk_command_free(p.commands[k]);
	vk_pipeline_free(p.pipeline);
	vk_memory_free(p.memory);
	vk_device_free(p.d);
}

/* ---- the parent ---- */

/* Steps a second of n processes together. */
static double run(struct shared *s, uint32_t n, uint64_t run_ns)
{
	uint32_t n_steps = 0;

	s->turn.n_active = n;
	pthread_barrier_wait(&s->barrier);
	pthread_barrier_wait(&s->barrier);
	s->turn.start_ns = clock_now_ns() + 1000000;
	s->turn.count_ns = s->turn.start_ns + run_ns / 5;
	s->turn.end_ns = s->turn.count_ns + run_ns;
	pthread_barrier_wait(&s->barrier);
	pthread_barrier_wait(&s->barrier);
	for (uint32_t i = 0; i < n; i++)
		n_steps += s->n_steps[i];
	return (double)n_steps * 1e9 / (double)run_ns;
}

static void print_row(struct shared *s, uint64_t run_ns)
{
	double one = run(s, 1, run_ns), busy = one * s->step_ns / 1e9;
	double two = run(s, 2, run_ns), four = run(s, 4, run_ns);

	printf("%6.2f %6.0f %5u %-6s %9.1f %6.1f %9.1f %9.1f %9.1f\n", s->step_ns / 1e6,
		(double)s->turn.gap_ns / 1e3, s->turn.depth, wait_names[s->turn.wait], one,
		100 * busy, 100 * two / one, 100 * four / one, 100 * four * s->step_ns / 1e9);
	fflush(stdout);
}

static struct list parse(const char *text)
{
	struct list list = {0};
	char *end;

	for (; list.n < MAX_VALUES && *text; text = *end ? end + 1 : end) {
		list.values[list.n++] = strtod(text, &end);
		if (end == text || (*end && *end != ','))
			fail_msg("expected numbers and commas, found %s", text);
	}
	return list;
}

static struct list parse_waits(const char *text)
{
	struct list list = {0};

	for (int i = 0; i < WAIT_N; i++)
		if (strstr(text, wait_names[i]))
			list.values[list.n++] = i;
	return list;
}

static void start_processes(struct shared *s, pid_t *pids)
{
	for (uint32_t i = 0; i < MAX_BESIDE; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			fail_msg("fork: %m");
		if (pids[i] == 0) {
			alarm(TIMEOUT_S);
			be_process(s, i);
			exit(0);
		}
	}
}

/* A process that failed leaves the others, and us, at a barrier. */
static void be_killed(int signal)
{
	(void)signal;
	_exit(1);
}

static void run_all(struct shared *s, const struct list *lists, uint64_t run_ns)
{
	const struct list *steps = &lists[0], *gaps = &lists[1], *depths = &lists[2];
	const struct list *waits = &lists[3];

	printf("%6s %6s %5s %-6s %9s %6s %9s %9s %9s\n", "MS", "GAP US", "DEPTH", "WAIT", "ONE /S",
		"BUSY %", "TWO %", "FOUR %", "BUSY %");
	for (uint32_t x = 0; x < steps->n; x++)
		for (uint32_t w = 0; w < waits->n; w++)
			for (uint32_t g = 0; g < gaps->n; g++)
				for (uint32_t k = 0; k < depths->n; k++) {
					s->turn = (struct turn){
						.depth = (uint32_t)depths->values[k],
						.wait = (enum wait)waits->values[w],
						.step_ms = steps->values[x],
						.gap_ns = (uint64_t)(gaps->values[g] * 1e3)};
					if (s->turn.depth < 1 || s->turn.depth > MAX_DEPTH)
						fail_msg("depth: expected 1 to %d", MAX_DEPTH);
					print_row(s, run_ns);
				}
}

int main(int argc, char **argv)
{
	const char *texts[] = {"0.5,1.3,2.6,5,10", "0,50,200", "1,2,3", "poll,sleep,nap", "0.1"};
	struct list lists[5];
	pthread_barrierattr_t attr;
	pid_t pids[MAX_BESIDE];
	int status = 0, bad = 0;

	for (int i = 1; i < argc && i <= 5; i++)
		texts[i - 1] = argv[i];
	for (int i = 0; i < 5; i++)
		lists[i] = i == 3 ? parse_waits(texts[i]) : parse(texts[i]);
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		fail_msg("mmap: %m");
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&s->barrier, &attr, MAX_BESIDE + 1);
	start_processes(s, pids);
	signal(SIGCHLD, be_killed);
	pthread_barrier_wait(&s->barrier);
	run_all(s, lists, (uint64_t)(lists[4].values[0] * 1e9));
	signal(SIGCHLD, SIG_DFL);
	s->turn.n_active = 0;
	pthread_barrier_wait(&s->barrier);
	for (uint32_t i = 0; i < MAX_BESIDE; i++)
		if (waitpid(pids[i], &status, 0) < 0 || status)
			bad = 1;
	return bad;
}
