/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-screen.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "weightctl/figure.h"
#include "weightctl/top-sample.h"
#include "weightctl/top-text.h"

enum {
	MODEL_COLUMNS = 14,
	LONG_COLUMNS = 256,
	/* Of a screen's lines, those that a part has at least where there is something for it. */
	MIN_WORKERS = 3,
	MIN_SESSIONS = 3,
};

static const char worker_head[] = "  PID     MODEL          GEN  STATE   SESS    ACT QUEUE "
				  "PROMPT/S    TOK/S  KV USE/SHR/CACHE/ALL  SPILL EXPERT PREFIX "
				  "DEVICE";
static const char session_head[] = "  SESSION CLIENT  STATE    TOKENS  IN KV      TOK/S";

struct painter {
	const struct top_sample *sample;
	const struct top_screen_view *view;
	struct top_screen screen;
	int r; /* the first failure */
};

const char *top_screen_get_word(uint32_t state)
{
	switch (state) {
	case TOP_SAMPLE_NEW: return "new";
	case TOP_SAMPLE_ASKED: return "asked";
	case TOP_SAMPLE_READY: return "ready";
	case TOP_SAMPLE_PARKED: return "parked";
	case TOP_SAMPLE_SILENT: return "silent";
	default: return "failed";
	}
}

const char *top_screen_get_session_word(uint32_t state)
{
	switch (state) {
	case WORKER_CLIENT_IDLE: return "idle";
	case WORKER_CLIENT_PROMPT: return "prompt";
	case WORKER_CLIENT_DECODING: return "decoding";
	default: return "unknown";
	}
}

void top_screen_fini(struct top_screen *s)
{
	for (uint32_t i = 0; i < s->n_lines; i++)
		free(s->lines[i].text);
	free(s->lines);
	*s = (struct top_screen){0};
}

static bool is_full(const struct painter *p)
{
	return p->view->height && p->screen.n_lines >= p->view->height;
}

/* What is below the screen's last line is left out. */
static void put(struct painter *p, struct top_text *t, enum top_screen_style style)
{
	struct top_screen *s = &p->screen;

	if (is_full(p) || p->r)
		return;
	struct top_screen_line *lines =
		reallocarray(s->lines, (size_t)s->n_lines + 1, sizeof(*lines));
	if (lines)
		s->lines = lines;
	if (p->view->width)
		top_text_cut(t, p->view->width);
	char *text = lines ? strdup(t->text) : NULL;
	if (!text) {
		p->r = -ENOMEM;
		return;
	}
	s->lines[s->n_lines++] = (struct top_screen_line){.text = text, .style = style};
}

static void put_words(struct painter *p, const char *words, enum top_screen_style style)
{
	struct top_text t = {0};

	top_text_add(&t, "%s", words);
	put(p, &t, style);
}

/* Right-aligned in a column of width; "-" where it is not known. */
static void add_rate(struct top_text *t, double rate, int width)
{
	if (rate < 0)
		top_text_add(t, "%*s", width, "-");
	else
		top_text_add(t, "%*.1f", width, rate);
}

static void put_device(struct painter *p, uint32_t i, const struct weights_client_device *d)
{
	const struct weights_client_account *a = &d->account;
	struct top_text t = {0};

	top_text_add(&t, "device %" PRIu32 ": ", i);
	if (d->has_account)
		top_text_add(&t,
			"budget %s, weights %s, reserved %s, free %s, %" PRIu32 " waiting; ",
			figure_bytes(a->budget_bytes).text, figure_bytes(a->weights_bytes).text,
			figure_bytes(a->reserved_bytes).text,
			figure_bytes(
				a->budget_bytes > a->weights_bytes + a->reserved_bytes
					? a->budget_bytes - a->weights_bytes - a->reserved_bytes
					: 0)
				.text,
			a->n_waiting);
	top_text_add_name(&t, d->name, LONG_COLUMNS);
	put(p, &t, TOP_SCREEN_PLAIN);
}

static void put_weightd(struct painter *p)
{
	const struct top_sample *s = p->sample;
	const struct weights_client_status *w = &s->weightd;
	struct top_text t = {0};
	uint64_t silent_ns;

	if (!s->has_weightd)
		return;
	top_text_add(&t, "weightd");
	if (w->build)
		top_text_add(&t, " pid %" PRId32 ", up %s, %" PRIu32 " model%s", w->pid,
			figure_time(w->uptime_ns).text, w->n_models, w->n_models == 1 ? "" : "s");
	if (w->build && !s->is_fixed)
		top_text_add(
			&t, ", %" PRIu32 " worker%s", s->n_workers, s->n_workers == 1 ? "" : "s");
	if (top_sample_is_silent(&s->contact, p->view->now_ns, &silent_ns)) {
		top_text_add(&t, ": no answer for %s", figure_time(silent_ns).text);
	} else if (s->contact.trouble[0]) {
		top_text_add(&t, ": ");
		top_text_add_name(&t, s->contact.trouble, LONG_COLUMNS);
	} else if (!w->build) {
		top_text_add(&t, ": asked");
	}
	put(p, &t, TOP_SCREEN_PLAIN);
	for (uint32_t i = 0; i < w->n_devices; i++)
		put_device(p, i, &w->devices[i]);
}

static void add_figures(struct top_text *t, const struct top_sample_worker *w)
{
	const struct worker_client_status *s = &w->status;
	char text[64];

	snprintf(text, sizeof(text), "%" PRIu32 "/%" PRIu32, s->n_sessions, s->max_sessions);
	top_text_add(t, "%-7s %-3" PRIu32 " %-5" PRIu32, text, top_sample_count_generating(s),
		s->n_queued);
	add_rate(t, w->rates.prompt, 9);
	add_rate(t, w->rates.generated, 9);
	snprintf(text, sizeof(text), "%" PRIu32 "/%" PRIu32 "/%" PRIu32 "/%" PRIu32,
		s->kv_used_pages, s->kv_shared_pages, s->kv_cached_pages, s->kv_pages);
	top_text_add(
		t, "  %-20s  %-5" PRIu64, s->kv_pages ? text : "-", top_sample_count_spills(s));
	add_rate(t, w->rates.found < 0 ? -1 : 100 * w->rates.found, 6);
	top_text_add(t, "%s%-6" PRIu32 " ", w->rates.found < 0 ? "  " : "% ", s->n_prefixes);
	top_text_add_name(t, s->device, LONG_COLUMNS);
}

static void put_worker(struct painter *p, uint32_t i)
{
	const struct top_sample_worker *w = p->sample->workers[i];
	enum top_sample_state state = top_sample_judge(w, p->view->now_ns);
	bool is_selected = p->view->height && i == p->view->selected;
	struct top_text t = {0};
	uint64_t silent_ns;

	top_text_add(&t, "%c %-7" PRId32 " ", is_selected ? '>' : ' ',
		w->has_status && !w->pid ? w->status.pid : w->pid);
	top_text_add_name(&t, w->has_status ? w->status.model : "-", MODEL_COLUMNS);
	top_text_pad(&t, 10 + MODEL_COLUMNS);
	top_text_add(&t, " %-4" PRIu64 " %-7s ", w->has_status ? w->status.generation : 0,
		top_screen_get_word(state));
	if (top_sample_is_silent(&w->contact, p->view->now_ns, &silent_ns)) {
		top_text_add(&t, "no answer for %s at ", figure_time(silent_ns).text);
		top_text_add_name(&t, w->socket, LONG_COLUMNS);
	} else if (state == TOP_SAMPLE_FAILED) {
		top_text_add_name(&t, w->contact.trouble, LONG_COLUMNS);
	} else if (w->has_status) {
		add_figures(&t, w);
	}
	put(p, &t, is_selected ? TOP_SCREEN_SELECTED : TOP_SCREEN_PLAIN);
}

/* n of the workers, the selected one among them. */
static void put_workers(struct painter *p, uint32_t n)
{
	uint32_t n_workers = p->sample->n_workers;
	uint32_t first = p->view->height && p->view->selected >= n ? p->view->selected - n + 1 : 0;

	put_words(p, worker_head, TOP_SCREEN_HEAD);
	for (uint32_t i = first; i < n_workers && i < first + n; i++)
		put_worker(p, i);
	if (!n_workers)
		put_words(p, "  no workers", TOP_SCREEN_PLAIN);
}

static void put_session(struct painter *p, const struct worker_client_session *s)
{
	struct top_text t = {0};

	top_text_add(&t, "  %-7" PRIu64 " %-7" PRIu64 " %-8s %-7" PRIu32 " %-8" PRIu32, s->session,
		s->client, top_screen_get_session_word(s->state), s->n_tokens, s->n_cached);
	add_rate(&t, s->tokens_per_second > 0 ? (double)s->tokens_per_second : -1, 8);
	put(p, &t, TOP_SCREEN_PLAIN);
}

static void put_sessions(struct painter *p, const struct top_sample_worker *w)
{
	const struct worker_client_status *s = &w->status;
	uint32_t n_rows = s->n_sessions_listed;
	struct top_text t = {0};

	put_words(p, "", TOP_SCREEN_PLAIN);
	top_text_add(&t, "sessions of worker %" PRId32 " at ", w->pid ? w->pid : s->pid);
	top_text_add_name(&t, w->socket ? w->socket : "its default socket", LONG_COLUMNS);
	put(p, &t, TOP_SCREEN_PLAIN);
	put_words(p, session_head, TOP_SCREEN_HEAD);
	uint32_t n_left = p->view->height ? p->view->height - p->screen.n_lines : n_rows;
	uint32_t n_shown = n_rows <= n_left ? n_rows : n_left ? n_left - 1 : 0;
	for (uint32_t i = 0; i < n_shown; i++)
		put_session(p, &s->sessions[i]);
	if (n_shown == n_rows)
		return;
	t = (struct top_text){0};
	top_text_add(&t, "  and %" PRIu32 " more", n_rows - n_shown);
	put(p, &t, TOP_SCREEN_PLAIN);
}

/* Lines for workers: what is left below weightd, less what sessions have at least. */
static uint32_t share_lines(const struct painter *p)
{
	uint32_t n_workers = p->sample->n_workers;
	uint32_t n_used = p->screen.n_lines + 1; /* and the head of the workers */
	uint32_t n_left = p->view->height > n_used ? p->view->height - n_used : 0;
	uint32_t n_sessions = 3 + MIN_SESSIONS; /* a blank, a title, a head */
	uint32_t n = n_left > n_sessions + MIN_WORKERS ? n_left - n_sessions : n_left;

	if (!p->view->height || n > n_workers)
		n = n_workers;
	return n ? n : 1;
}

int top_screen_draw(const struct top_sample *sample, const struct top_screen_view *view,
	struct top_screen *ret_screen)
{
	struct painter p = {.sample = sample, .view = view};

	put_weightd(&p);
	put_workers(&p, share_lines(&p));
	for (uint32_t i = 0; i < sample->n_workers; i++) {
		const struct top_sample_worker *w = sample->workers[i];

		if (w->has_status &&
			(view->height ? i == view->selected : w->status.n_sessions > 0))
			put_sessions(&p, w);
	}
	if (p.r) {
		top_screen_fini(&p.screen);
		return p.r;
	}
	*ret_screen = p.screen;
	return 0;
}
