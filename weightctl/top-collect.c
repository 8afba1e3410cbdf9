/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-collect.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "proto/util/err.h"
#include "weightctl/top-reader.h"

int top_collect_init(struct top_collect *c, bool asks_weightd, const char *weightd,
	const char *worker, struct err *ret_err)
{
	int r = 0;

	*c = (struct top_collect){.sample = {.has_weightd = asks_weightd, .is_fixed = worker}};
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake_fd < 0)
		return err_set(ret_err, errno, "eventfd: %s", strerror(errno));
	if (asks_weightd)
		r = top_reader_new_weightd(weightd, c->wake_fd, ret_err, &c->weightd);
	if (!r && worker)
		r = top_sample_add(&c->sample, 0, worker);
	if (r)
		top_collect_fini(c);
	return r;
}

/* The eventfd stays: a question that is under way ends in a write to it. */
void top_collect_fini(struct top_collect *c)
{
	top_reader_free(c->weightd);
	for (uint32_t i = 0; i < c->sample.n_workers; i++)
		top_reader_free(c->sample.workers[i]->reader);
	top_sample_fini(&c->sample);
	c->weightd = NULL;
}

static int must_check ask_worker(
	struct top_collect *c, struct top_sample_worker *w, uint64_t now_ns, struct err *ret_err)
{
	if (w->socket && !w->socket[0])
		return 0;
	int r = w->reader ? 0 : top_reader_new_worker(w->socket, c->wake_fd, ret_err, &w->reader);
	if (r)
		return r;
	top_sample_ask(&w->contact, now_ns);
	top_reader_ask(w->reader);
	return 0;
}

void top_collect_ask(struct top_collect *c, uint64_t now_ns)
{
	if (c->weightd) {
		top_sample_ask(&c->sample.contact, now_ns);
		top_reader_ask(c->weightd);
	}
	for (uint32_t i = 0; i < c->sample.n_workers; i++) {
		struct top_sample_worker *w = c->sample.workers[i];
		struct err e = ERR_NULL;
		int r = ask_worker(c, w, now_ns, &e);

		/* It is tried again at the next look. */
		if (r)
			top_sample_hear(&w->contact, r, e.text);
	}
}

static int must_check take_weightd(struct top_collect *c, uint64_t now_ns, struct err *ret_err)
{
	struct weights_client_status status = {0};
	struct top_sample_worker **gone = NULL;
	struct err e = ERR_NULL;
	uint32_t n_gone = 0;
	int answer;

	if (!c->weightd || !top_reader_take_weightd(c->weightd, &e, &answer, &status))
		return 0;
	top_sample_hear(&c->sample.contact, answer, e.text);
	if (answer)
		return 0;
	int r = top_sample_set_weightd(&c->sample, &status, &gone, &n_gone);
	if (r) {
		weights_client_status_fini(&status);
		return err_set(ret_err, -r, "no memory for a status of weightd");
	}
	for (uint32_t i = 0; i < n_gone; i++) {
		top_reader_free(gone[i]->reader);
		top_sample_free_worker(gone[i]);
	}
	free(gone);
	for (uint32_t i = 0; i < c->sample.n_workers; i++) {
		struct top_sample_worker *w = c->sample.workers[i];

		if (w->reader)
			continue;
		e = ERR_NULL;
		r = ask_worker(c, w, now_ns, &e);
		if (r)
			top_sample_hear(&w->contact, r, e.text);
	}
	return 0;
}

int top_collect_take(struct top_collect *c, uint64_t now_ns, struct err *ret_err)
{
	static struct worker_client_status status; /* too large for a stack */
	eventfd_t n;

	eventfd_read(c->wake_fd, &n);
	for (uint32_t i = 0; i < c->sample.n_workers; i++) {
		struct top_sample_worker *w = c->sample.workers[i];
		struct err e = ERR_NULL;
		int r;

		if (!w->reader || !top_reader_take_worker(w->reader, &e, &r, &status))
			continue;
		top_sample_hear(&w->contact, r, e.text);
		if (r == 0)
			top_sample_set_status(w, &status);
	}
	return take_weightd(c, now_ns, ret_err);
}

static bool is_waited_for(const struct top_sample_contact *contact, uint64_t now_ns)
{
	uint64_t silent_ns;

	return contact->asked_ns && !top_sample_is_silent(contact, now_ns, &silent_ns);
}

bool top_collect_is_complete(const struct top_collect *c, uint64_t now_ns)
{
	if (is_waited_for(&c->sample.contact, now_ns))
		return false;
	for (uint32_t i = 0; i < c->sample.n_workers; i++)
		if (is_waited_for(&c->sample.workers[i]->contact, now_ns))
			return false;
	return true;
}
