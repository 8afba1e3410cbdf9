/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightctl/top-collect.h"
#include "weightctl/top-json.h"
#include "weightctl/top-screen.h"
#include "weightctl/top-terminal.h"

enum {
	/* A picture does not wait longer for answers that may still come; a table does. */
	SCREEN_WAIT_MS = 250,
	ONCE_LOOKS = 2, /* a rate is between two */
	N_KEYS = 64,
};

static const uint64_t ms_ns = 1000000;

struct top {
	const struct options *options;
	struct top_collect collect;
	struct top_terminal terminal;
	bool is_live;
	int signal_fd; /* -1: not live */
	bool has_keys; /* stdin is read */
	uint32_t selected;
	uint64_t next_ns;  /* the next look */
	uint64_t asked_ns; /* the look that nothing has been shown of; 0: there is none */
	uint32_t n_looks;  /* that were shown, or could have been */
	bool is_done;
};

static int must_check draw(struct top *t, uint64_t now_ns, struct err *ret_err)
{
	struct top_screen_view view = {.now_ns = now_ns};
	struct top_screen screen;

	if (t->is_live)
		top_terminal_get_size(&view.width, &view.height);
	if (t->selected >= t->collect.sample.n_workers)
		t->selected = t->collect.sample.n_workers ? t->collect.sample.n_workers - 1 : 0;
	view.selected = t->selected;
	int r = top_screen_draw(&t->collect.sample, &view, &screen);
	if (r)
		return r;
	if (t->is_live) {
		r = t->terminal.is_entered ? 0 : top_terminal_enter(&t->terminal, ret_err);
		if (!r)
			r = top_terminal_show(&screen, ret_err);
	} else {
		for (uint32_t i = 0; i < screen.n_lines; i++)
			puts(screen.lines[i].text);
		if (!t->options->once)
			putchar('\n');
		r = output_flush(ret_err);
	}
	top_screen_fini(&screen);
	return r;
}

/* Who was named and cannot be asked at all is no screen, but one line. */
static int must_check check_first(const struct top *t, struct err *ret_err)
{
	const struct top_sample *s = &t->collect.sample;

	if (s->has_weightd && s->contact.trouble[0] && !s->weightd.build)
		return err_set(ret_err, EHOSTUNREACH, "%s", s->contact.trouble);
	if (s->is_fixed && s->n_workers && s->workers[0]->contact.trouble[0])
		return err_set(ret_err, EHOSTUNREACH, "%s", s->workers[0]->contact.trouble);
	return 0;
}

static int must_check show(struct top *t, uint64_t now_ns, struct err *ret_err)
{
	int r = t->n_looks++ ? 0 : check_first(t, ret_err);

	t->asked_ns = 0;
	if (r || (t->options->once && t->n_looks < ONCE_LOOKS))
		return r;
	t->is_done = t->options->once;
	if (!t->options->json)
		return draw(t, now_ns, ret_err);
	r = output_json(top_json_make(&t->collect.sample, now_ns));
	return r ? r : output_flush(ret_err);
}

/* The worker that is selected stays so when others come and go before it in the list. */
static int must_check take(struct top *t, uint64_t now_ns, struct err *ret_err)
{
	const struct top_sample *s = &t->collect.sample;
	const struct top_sample_worker *selected =
		t->selected < s->n_workers ? s->workers[t->selected] : NULL;
	int r = top_collect_take(&t->collect, now_ns, ret_err);

	for (uint32_t i = 0; selected && i < s->n_workers; i++)
		if (s->workers[i] == selected)
			t->selected = i;
	return r;
}

static int must_check look(struct top *t, uint64_t now_ns, struct err *ret_err)
{
	uint64_t wait_ns = (t->is_live ? SCREEN_WAIT_MS : TOP_SAMPLE_SILENT_MS) * ms_ns;

	if (now_ns >= t->next_ns) {
		uint64_t interval_ns = (uint64_t)((double)t->options->interval_s * 1e9);

		t->next_ns = t->next_ns + interval_ns > now_ns ? t->next_ns + interval_ns
							       : now_ns + interval_ns;
		if (!t->asked_ns)
			t->asked_ns = now_ns;
		top_collect_ask(&t->collect, now_ns);
	}
	int r = take(t, now_ns, ret_err);
	if (r || !t->asked_ns)
		return r;
	if (!top_collect_is_complete(&t->collect, now_ns) && now_ns - t->asked_ns < wait_ns)
		return 0;
	return show(t, now_ns, ret_err);
}

static void press(struct top *t, enum top_terminal_key key)
{
	switch (key) {
	case TOP_TERMINAL_QUIT: t->is_done = true; break;
	case TOP_TERMINAL_UP: t->selected -= t->selected > 0; break;
	case TOP_TERMINAL_DOWN: t->selected++; break; /* draw knows the last */
	case TOP_TERMINAL_NONE: break;
	}
}

static int must_check read_keys(struct top *t, struct err *ret_err)
{
	char keys[N_KEYS];
	ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));

	if (n < 0 && errno == EINTR)
		return 0;
	if (n <= 0) { /* the terminal is gone, or was never there for us */
		t->has_keys = false;
		return 0;
	}
	for (uint32_t at = 0; at < (uint32_t)n && !t->is_done;) {
		uint32_t n_taken;

		press(t, top_terminal_parse_key(keys + at, (uint32_t)n - at, &n_taken));
		at += n_taken;
	}
	return t->is_done ? 0 : draw(t, clock_now_ns(), ret_err);
}

/* The shell gets its screen; SIGCONT brings this back. */
static int must_check suspend(struct top *t, struct err *ret_err)
{
	top_terminal_leave(&t->terminal);
	raise(SIGSTOP);
	return draw(t, clock_now_ns(), ret_err);
}

static int must_check read_signal(struct top *t, struct err *ret_err)
{
	struct signalfd_siginfo info;

	if (read(t->signal_fd, &info, sizeof(info)) != sizeof(info))
		return 0;
	if (info.ssi_signo == SIGWINCH)
		return t->terminal.is_entered ? draw(t, clock_now_ns(), ret_err) : 0;
	if (info.ssi_signo == SIGTSTP)
		return suspend(t, ret_err);
	t->is_done = true;
	return 0;
}

static int must_check wait_for_more(struct top *t, struct err *ret_err)
{
	uint64_t now_ns = clock_now_ns();
	uint64_t until_ns = t->next_ns;
	uint64_t wait_ns = (t->is_live ? SCREEN_WAIT_MS : TOP_SAMPLE_SILENT_MS) * ms_ns;
	struct pollfd fds[] = {
		{.fd = t->collect.wake_fd, .events = POLLIN},
		{.fd = t->signal_fd, .events = POLLIN},
		{.fd = t->has_keys && t->terminal.is_entered ? STDIN_FILENO : -1, .events = POLLIN},
	};

	if (t->asked_ns && t->asked_ns + wait_ns < until_ns)
		until_ns = t->asked_ns + wait_ns;
	uint64_t left_ms = until_ns > now_ns ? (until_ns - now_ns + ms_ns - 1) / ms_ns : 0;
	if (poll(fds, ARRAY_SIZE(fds), (int)left_ms) < 0 && errno != EINTR)
		return err_set(ret_err, errno, "poll: %s", strerror(errno));
	int r = fds[1].revents ? read_signal(t, ret_err) : 0;
	if (!r && !t->is_done && fds[2].revents)
		r = read_keys(t, ret_err);
	return r;
}

/* From here on, and for every thread that is started, these come by the descriptor alone. */
static int must_check catch_signals(struct top *t, struct err *ret_err)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP};
	sigset_t set;

	sigemptyset(&set);
	for (uint32_t i = 0; i < ARRAY_SIZE(numbers); i++)
		sigaddset(&set, numbers[i]);
	int r = -pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (!r) {
		t->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
		r = t->signal_fd < 0 ? -errno : 0;
	}
	return r ? err_set(ret_err, -r, "signals: %s", strerror(-r)) : 0;
}

int top_run(const struct options *o, struct err *ret_err)
{
	struct top t = {
		.options = o,
		.is_live = !o->json && !o->once && isatty(STDOUT_FILENO),
		.signal_fd = -1,
		.next_ns = clock_now_ns(),
	};
	int r = 0;

	t.has_keys = t.is_live && isatty(STDIN_FILENO);
	if (t.is_live)
		r = catch_signals(&t, ret_err);
	if (!r)
		r = top_collect_init(
			&t.collect, o->weightd || !o->worker, o->weightd, o->worker, ret_err);
	if (r)
		return r;
	while (!r && !t.is_done) {
		r = look(&t, clock_now_ns(), ret_err);
		if (!r && !t.is_done)
			r = wait_for_more(&t, ret_err);
	}
	top_terminal_leave(&t.terminal);
	top_collect_fini(&t.collect);
	cleanup_close(&t.signal_fd);
	return r;
}
