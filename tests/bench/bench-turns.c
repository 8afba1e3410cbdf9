/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes that decode beside each other get of a device on which they take turns: 1, 2 and 4
 * of them each submit a step of some milliseconds (short dispatches that wait for each other), wait
 * for it, do nothing for a gap and submit the next, with several steps under way at once. The total
 * rate is printed as a share of one process's that does the same, and of the device's time.
 *
 *	bench-turns [NAME=VALUE,...]...        WEIGHTD_TEST_DEVICE as for the tests
 *
 *	step=0.5,1.3,2.6,5,10    ms of a step
 *	dispatch=8               us of a dispatch
 *	wait=poll,sleep,nap      nap: sleeps for most of what a step takes alone, and polls then;
 * sleep is what vk_submit_wait does order=free,lock,early    lock: a process submits when the steps
 * of the one before it are done; early: when they are about to be gap=0,50,200             us
 *	depth=1,2,3              steps under way; with an order, of a turn
 *	slices=0                 1: also how long the device stays with a process, and away from it
 *	seconds=0.2              that are counted, of each number of processes
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
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

enum { MAX_BESIDE = 4, MAX_DEPTH = 8, MAX_VALUES = 8, N_SAMPLE = 256, TIMEOUT_S = 600 };
enum { MAX_STAMPS = 2048, MAX_SLICES = 1 << 16, MAX_ROUNDS = 1 << 15 };

/* Workgroups of a dispatch: several for each core of a large device, one for a processor's. */
enum { N_GROUPS = 528, SOFTWARE_N_GROUPS = 2 };

/* The device computes for so long before anything is counted: clocks rise. */
#define WARM_NS UINT64_C(700000000)

/* How long before the end of its steps a process lets the next one submit. */
#define EARLY_NS UINT64_C(300000)

enum wait { WAIT_POLL, WAIT_SLEEP, WAIT_NAP, WAIT_N };
enum order { ORDER_FREE, ORDER_LOCK, ORDER_EARLY, ORDER_N };

static const char *const wait_names[WAIT_N] = {"poll", "sleep", "nap"};
static const char *const order_names[ORDER_N] = {"free", "lock", "early"};

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
	enum order order;
	bool has_slices;
	double step_ms;
	double dispatch_us;
	uint64_t gap_ns;
	uint64_t start_ns, count_ns, end_ns; /* steps that end from count_ns on are counted */
};

/* Medians of process 0. */
struct slices {
	double run_us; /* between two gaps */
	double gap_us; /* in which others compute, and the device changes over */
	double gaps_per_second;
};

struct shared {
	pthread_barrier_t barrier; /* of the parent and all children */
	struct turn turn;
	double round_ns; /* what a round adds to a dispatch, and what it takes without */
	double empty_ns;
	double step_ns;                       /* of the device alone, by its own clock */
	_Atomic uint32_t n_tickets, n_served; /* of the order */
	_Atomic uint64_t end_ns;              /* when what has been submitted will be done */
	struct slices slices;
	uint32_t n_steps[MAX_BESIDE];
};

struct process {
	struct shared *shared;
	struct vk_device *d;
	struct vk_memory *memory;
	struct vk_pipeline *pipeline;
	struct vk_command *commands[MAX_DEPTH];
	struct vk_command *stamped[MAX_DEPTH]; /* with a timestamp behind each dispatch */
	uint32_t n_groups;
	uint32_t n_stamps;           /* of each that is stamped, in use */
	double step_ms, dispatch_us; /* that they are recorded for */
	/* Where process 0 looks at slices. */
	uint64_t *stamps;
	double *runs, *gaps;
	uint32_t n_slices;
	uint64_t run_from, last_stamp;
};

/* Steps that the process has given to the device. */
struct given {
	uint64_t tickets[MAX_DEPTH];
	uint32_t n_given, n_done;
	uint64_t since_ns;
};

struct list {
	uint32_t n;
	double values[MAX_VALUES];
};

/* ---- a process ---- */

static void record(struct process *p, struct vk_command *c, bool is_stamped, uint32_t n_dispatches,
	uint32_t n_rounds)
{
	const struct push push = {.dst = vk_memory_get_address(p->memory), .n_rounds = n_rounds};
	uint32_t n_stamps = is_stamped ? MAX_STAMPS : 2, n = 1;
	struct err e = ERR_NULL;

	vk_command_begin(c);
	vk_command_stamp(c, 0);
	for (uint32_t i = 0; i < n_dispatches; i++) {
		vk_command_dispatch(c, p->pipeline, &push, sizeof(push), p->n_groups, 1, 1);
		vk_command_barrier(c);
		if (is_stamped)
			vk_command_stamp(c, n++);
	}
	/* All are written, so that all can be read. */
	for (; n < n_stamps; n++)
		vk_command_stamp(c, n);
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

static double time_dispatch(struct process *p, uint32_t n_rounds)
{
	double best = INFINITY;

	record(p, p->commands[0], false, N_SAMPLE, n_rounds);
	for (int i = 0; i < 5; i++) {
		double ns = time_alone(p, p->commands[0]) / N_SAMPLE;

		best = ns < best ? ns : best;
	}
	return best;
}

/* What dispatches take, once the device is awake. */
static void calibrate(struct process *p)
{
	struct shared *s = p->shared;
	uint64_t until_ns = clock_now_ns() + WARM_NS;

	do {
		s->empty_ns = time_dispatch(p, 0);
		s->round_ns = (time_dispatch(p, 1024) - s->empty_ns) / 1024;
	} while (clock_now_ns() < until_ns);
}

static void prepare(struct process *p)
{
	const struct turn *t = &p->shared->turn;
	double n_rounds = (t->dispatch_us * 1e3 - p->shared->empty_ns) / p->shared->round_ns;
	uint32_t n = (uint32_t)(t->step_ms * 1e3 / t->dispatch_us);

	n = n < 1 ? 1 : n < MAX_STAMPS ? n : MAX_STAMPS - 1;
	n_rounds = n_rounds < 1 ? 1 : n_rounds < MAX_ROUNDS ? n_rounds : MAX_ROUNDS;
	if (p->step_ms != t->step_ms || p->dispatch_us != t->dispatch_us)
		for (uint32_t i = 0; i < MAX_DEPTH; i++) {
			record(p, p->commands[i], false, n, (uint32_t)n_rounds);
			record(p, p->stamped[i], true, n, (uint32_t)n_rounds);
		}
	p->n_stamps = n + 1;
	p->step_ms = t->step_ms;
	p->dispatch_us = t->dispatch_us;
	p->n_slices = 0;
	p->run_from = p->last_stamp = 0;
}

/* Where two dispatches are much farther apart than one takes, others had the device. */
static void note_slices(struct process *p, struct vk_command *c)
{
	double longest = p->dispatch_us * 1e3 * 3 + 20e3;

	if (vk_command_get_stamps(c, p->stamps))
		fail_msg("timestamps");
	for (uint32_t i = 0; i < p->n_stamps; i++) {
		uint64_t at = p->stamps[i];

		if (p->last_stamp && (double)(at - p->last_stamp) > longest) {
			if (p->run_from && p->n_slices < MAX_SLICES) {
				p->runs[p->n_slices] = (double)(p->last_stamp - p->run_from) / 1e3;
				p->gaps[p->n_slices++] = (double)(at - p->last_stamp) / 1e3;
			}
			p->run_from = at;
		}
		p->last_stamp = at;
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
	qsort(values, n, sizeof(*values), compare);
	return n ? values[n / 2] : 0;
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

static void give(struct process *p, struct given *g)
{
	const struct turn *t = &p->shared->turn;
	uint32_t i = g->n_given++ % t->depth;
	bool is_stamped = t->has_slices && p->stamps;

	g->tickets[i] = submit(p, is_stamped ? p->stamped[i] : p->commands[i]);
}

static uint64_t take(struct process *p, struct given *g, uint32_t *ret_n_steps)
{
	const struct turn *t = &p->shared->turn;
	uint32_t i = g->n_done++ % t->depth;

	wait_for(p, g->tickets[i], g->since_ns);
	uint64_t now_ns = g->since_ns = clock_now_ns();
	*ret_n_steps += now_ns >= t->count_ns && now_ns < t->end_ns;
	if (t->has_slices && p->stamps)
		note_slices(p, p->stamped[i]);
	return now_ns;
}

static void take_turns(struct process *p, uint32_t *ret_n_steps)
{
	const struct turn *t = &p->shared->turn;
	struct given g = {.since_ns = t->start_ns};
	uint64_t now_ns;

	do {
		while (g.n_given - g.n_done < t->depth)
			give(p, &g);
		now_ns = take(p, &g, ret_n_steps);
		if (t->gap_ns)
			spin_until(now_ns + t->gap_ns);
	} while (now_ns < t->end_ns);
	while (g.n_done < g.n_given)
		take(p, &g, ret_n_steps);
}

/* Until it is about to be done with what it has been given. */
static void hold_until_early(struct process *p, const struct given *g, uint64_t end_ns)
{
	uint64_t last = g->tickets[(g->n_given - 1) % p->shared->turn.depth];

	while (clock_now_ns() < end_ns - EARLY_NS && !vk_submit_is_done(p->d, last))
		;
	atomic_fetch_add(&p->shared->n_served, 1);
}

/* One process after the other has `depth` steps; until they end, or nearly so, the rest waits. */
static void take_turns_in_order(struct process *p, uint32_t *ret_n_steps)
{
	struct shared *s = p->shared;
	const struct turn *t = &s->turn;
	struct given g = {.since_ns = t->start_ns};
	uint64_t now_ns = 0;

	do {
		uint32_t ticket = atomic_fetch_add(&s->n_tickets, 1);

		while (atomic_load(&s->n_served) != ticket)
			;
		for (uint32_t i = 0; i < t->depth; i++)
			give(p, &g);
		uint64_t from_ns = clock_now_ns(), end_ns = atomic_load(&s->end_ns);
		end_ns = (end_ns > from_ns ? end_ns : from_ns) +
			 (uint64_t)(s->step_ns * (double)t->depth);
		atomic_store(&s->end_ns, end_ns);
		if (t->order == ORDER_EARLY)
			hold_until_early(p, &g, end_ns);
		while (g.n_done < g.n_given)
			now_ns = take(p, &g, ret_n_steps);
		if (t->order == ORDER_LOCK)
			atomic_fetch_add(&s->n_served, 1);
		if (t->gap_ns)
			spin_until(now_ns + t->gap_ns);
	} while (now_ns < t->end_ns);
}

static void run_turn(struct process *p, uint32_t *ret_n_steps)
{
	const struct turn *t = &p->shared->turn;

	*ret_n_steps = 0;
	spin_until(t->start_ns);
	if (t->order == ORDER_FREE)
		take_turns(p, ret_n_steps);
	else
		take_turns_in_order(p, ret_n_steps);
	if (t->has_slices && p->stamps)
		p->shared->slices = (struct slices){.run_us = median(p->runs, p->n_slices),
			.gap_us = median(p->gaps, p->n_slices),
			.gaps_per_second = p->n_slices * 1e9 / (double)(t->end_ns - t->start_ns)};
}

static void init_process(struct process *p, struct shared *s, uint32_t i)
{
	*p = (struct process){.shared = s, .d = on_device_new()};
	p->n_groups = vk_device_get_info(p->d)->is_software ? SOFTWARE_N_GROUPS : N_GROUPS;
	p->memory = on_device_memory(p->d, VK_MEMORY_SCRATCH, 256, false);
	p->pipeline = ON_DEVICE_PIPELINE(p->d, turns_spirv, sizeof(struct push));
	for (uint32_t k = 0; k < MAX_DEPTH; k++) {
		p->commands[k] = on_device_command(p->d, 2);
		p->stamped[k] = on_device_command(p->d, MAX_STAMPS);
	}
	if (i > 0)
		return;
	p->stamps = calloc(MAX_STAMPS, sizeof(*p->stamps));
	p->runs = calloc(MAX_SLICES, sizeof(*p->runs));
	p->gaps = calloc(MAX_SLICES, sizeof(*p->gaps));
	if (!p->stamps || !p->runs || !p->gaps)
		fail_msg("no memory");
}

static void fini_process(struct process *p)
{
	for (uint32_t k = 0; k < MAX_DEPTH; k++) {
		vk_command_free(p->commands[k]);
		vk_command_free(p->stamped[k]);
	}
	free(p->stamps);
	free(p->runs);
	free(p->gaps);
	vk_pipeline_free(p->pipeline);
	vk_memory_free(p->memory);
	vk_device_free(p->d);
}

static void be_process(struct shared *s, uint32_t i)
{
	struct process p;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_TIMERSLACK, 1);
	alarm(TIMEOUT_S);
	init_process(&p, s, i);
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
			run_turn(&p, &s->n_steps[i]);
		pthread_barrier_wait(&s->barrier); /* all are done */
	}
	fini_process(&p);
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

static void print_slices(const struct slices *x)
{
	printf(" %8.0f %8.0f %6.0f", x->run_us, x->gap_us, x->gaps_per_second);
}

static void print_row(struct shared *s, uint64_t run_ns)
{
	const struct turn *t = &s->turn;
	double one = run(s, 1, run_ns), busy = 100 * s->step_ns / 1e9;
	double two = run(s, 2, run_ns);
	struct slices slices = s->slices;
	double four = run(s, 4, run_ns);

	printf("%6.2f %5.0f %5.0f %5u %-6s %-6s %8.1f %6.1f %6.1f %6.1f %7.1f %6.1f",
		s->step_ns / 1e6, t->dispatch_us, (double)t->gap_ns / 1e3, t->depth,
		wait_names[t->wait], order_names[t->order], one, one * busy, 100 * two / one,
		two * busy, 100 * four / one, four * busy);
	if (t->has_slices) {
		print_slices(&slices);
		print_slices(&s->slices);
	}
	printf("\n");
	fflush(stdout);
}

static struct list parse_numbers(const char *text)
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

static struct list parse_names(const char *text, const char *const *names, int n)
{
	struct list list = {0};

	for (int i = 0; i < n; i++)
		if (strstr(text, names[i]))
			list.values[list.n++] = i;
	return list;
}

enum axis {
	AXIS_STEP,
	AXIS_DISPATCH,
	AXIS_WAIT,
	AXIS_ORDER,
	AXIS_GAP,
	AXIS_DEPTH,
	AXIS_SLICES,
	AXIS_SECONDS,
	AXIS_N,
};

static const struct {
	const char *name, *values;
} axes[AXIS_N] = {
	[AXIS_STEP] = {"step", "0.5,1.3,2.6,5,10"},
	[AXIS_DISPATCH] = {"dispatch", "8"},
	[AXIS_WAIT] = {"wait", "poll,sleep,nap"},
	[AXIS_ORDER] = {"order", "free"},
	[AXIS_GAP] = {"gap", "0,50,200"},
	[AXIS_DEPTH] = {"depth", "1,2,3"},
	[AXIS_SLICES] = {"slices", "0"},
	[AXIS_SECONDS] = {"seconds", "0.2"},
};

static void parse(int argc, char **argv, struct list *ret_lists)
{
	for (int i = 0; i < AXIS_N; i++) {
		const char *text = axes[i].values;
		size_t n = strlen(axes[i].name);

		for (int k = 1; k < argc; k++)
			if (!strncmp(argv[k], axes[i].name, n) && argv[k][n] == '=')
				text = argv[k] + n + 1;
		ret_lists[i] = i == AXIS_WAIT    ? parse_names(text, wait_names, WAIT_N)
			       : i == AXIS_ORDER ? parse_names(text, order_names, ORDER_N)
						 : parse_numbers(text);
		if (!ret_lists[i].n)
			fail_msg("%s: expected a value, found %s", axes[i].name, text);
	}
}

/* The next of all combinations; the last axis changes fastest. False: there is none. */
static bool advance(const struct list *lists, uint32_t *at)
{
	for (int i = AXIS_N - 1; i >= 0; i--) {
		if (++at[i] < lists[i].n)
			return true;
		at[i] = 0;
	}
	return false;
}

static void run_all(struct shared *s, const struct list *lists)
{
	uint32_t at[AXIS_N] = {0};

	printf("%6s %5s %5s %5s %-6s %-6s %8s %6s %6s %6s %7s %6s%s\n", "MS", "EACH", "GAP",
		"DEPTH", "WAIT", "ORDER", "ONE /S", "BUSY %", "TWO %", "BUSY", "FOUR %", "BUSY",
		lists[AXIS_SLICES].values[0] > 0 ? "   RUN US   GAP US GAPS/S (two, then four)"
						 : "");
	do {
		double values[AXIS_N];

		for (int i = 0; i < AXIS_N; i++)
			values[i] = lists[i].values[at[i]];
		s->turn = (struct turn){.depth = (uint32_t)values[AXIS_DEPTH],
			.wait = (enum wait)values[AXIS_WAIT],
			.order = (enum order)values[AXIS_ORDER],
			.has_slices = values[AXIS_SLICES] > 0,
			.step_ms = values[AXIS_STEP],
			.dispatch_us = values[AXIS_DISPATCH],
			.gap_ns = (uint64_t)(values[AXIS_GAP] * 1e3)};
		if (s->turn.depth < 1 || s->turn.depth > MAX_DEPTH)
			fail_msg("depth: expected 1 to %d", MAX_DEPTH);
		print_row(s, (uint64_t)(values[AXIS_SECONDS] * 1e9));
	} while (advance(lists, at));
}

static void start_processes(struct shared *s, pid_t *pids)
{
	for (uint32_t i = 0; i < MAX_BESIDE; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			fail_msg("fork: %m");
		if (pids[i] == 0) {
			be_process(s, i);
			exit(0);
		}
	}
}

/* A process that failed leaves the others, and us, at a barrier. */
static void be_killed(int number)
{
	(void)number;
	_exit(1);
}

int main(int argc, char **argv)
{
	struct list lists[AXIS_N];
	pthread_barrierattr_t attr;
	pid_t pids[MAX_BESIDE];
	int status = 0, bad = 0;

	parse(argc, argv, lists);
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		fail_msg("mmap: %m");
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&s->barrier, &attr, MAX_BESIDE + 1);
	signal(SIGCHLD, be_killed);
	start_processes(s, pids);
	pthread_barrier_wait(&s->barrier);
	run_all(s, lists);
	signal(SIGCHLD, SIG_DFL);
	s->turn.n_active = 0;
	pthread_barrier_wait(&s->barrier);
	for (uint32_t i = 0; i < MAX_BESIDE; i++)
		if (waitpid(pids[i], &status, 0) < 0 || status)
			bad = 1;
	return bad;
}
