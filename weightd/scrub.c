/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/scrub.h"

#include <errno.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/check.h"
#include "weightd/checksum.h"
#include "weightd/export.h"
#include "weightd/sum.h"

#define SCRUB_STEP_NS UINT64_C(1000000000)

enum { SCRUB_STEPS = 8 }; /* at least, a period */

static uint64_t scrub_scale(uint64_t a, uint64_t b, uint64_t c)
{
	unsigned __int128 v = (unsigned __int128)a * b / (c ? c : 1);

	return v > UINT64_MAX ? UINT64_MAX : (uint64_t)v;
}

uint32_t scrub_get_pieces(const struct scrub *s, uint64_t n_total_bytes)
{
	uint64_t step_ns = s->period_ns / SCRUB_STEPS;
	uint64_t n = sum_count_pieces(scrub_scale(
		n_total_bytes, step_ns < SCRUB_STEP_NS ? step_ns : SCRUB_STEP_NS, s->period_ns));

	if (n == 0)
		return 1;
	return n < CHECKSUM_MAX_PIECES ? (uint32_t)n : CHECKSUM_MAX_PIECES;
}

uint64_t scrub_get_next(const struct scrub *s, uint64_t start_ns, uint64_t n_bytes,
	uint64_t n_total_bytes, uint64_t elapsed_ns)
{
	uint64_t share_ns = scrub_scale(s->period_ns, n_bytes, n_total_bytes);
	uint64_t budget_ns = scrub_scale(elapsed_ns, SCRUB_MAX_PERCENT, s->budget_percent);
	uint64_t wait_ns = share_ns > budget_ns ? share_ns : budget_ns;

	return wait_ns > UINT64_MAX - start_ns ? UINT64_MAX : start_ns + wait_ns;
}

static bool scrub_is_looked_at(const struct export *e)
{
	return e->check && !e->is_suspect && check_count_bytes(e->check, e, CHECK_WRITABLE) > 0;
}

uint64_t scrub_count_bytes(const struct export *first)
{
	uint64_t n_bytes = 0;

	for (const struct export *e = first; e; e = TAILQ_NEXT(e, entry))
		if (scrub_is_looked_at(e))
			n_bytes += check_count_bytes(e->check, e, CHECK_WRITABLE);
	return n_bytes;
}

struct export *scrub_find(struct scrub *s, struct export *first)
{
	bool is_any = false;

	for (struct export *e = first; e; e = TAILQ_NEXT(e, entry)) {
		if (!scrub_is_looked_at(e))
			continue;
		if (e->scrub_round < s->round)
			return e;
		is_any = true;
	}
	if (!is_any)
		return NULL;
	s->round++;
	return scrub_find(s, first);
}

/* Something was not as it should be: what all is it? */
static int scrub_look_again(struct export *e, const struct check_means *means, struct err *ret_err,
	struct check_report *ret_report)
{
	int rc = check_run(e->check, e, means, CHECK_ALL, ret_err, ret_report);

	e->is_suspect = true;
	if (rc)
		return rc;
	if (ret_report->n_tensors > 0)
		return SCRUB_DIFFERS;
	/* Memory that gives other bytes at a second look is not to be trusted, but nobody could be
	 * told where. */
	return err_set(ret_err, EIO, "%s", "checksums: a piece differed once and not again");
}

int scrub_run(struct scrub *s, struct export *e, const struct check_means *means,
	uint64_t n_total_bytes, struct err *ret_err, struct check_report *ret_report)
{
	uint64_t start_ns = clock_now_ns();

	memset(ret_report, 0, sizeof(*ret_report));
	e->scrub_pass.scope = CHECK_WRITABLE;
	int rc = check_step(e->check, e, means, scrub_get_pieces(s, n_total_bytes), &e->scrub_pass,
		ret_err, ret_report);
	s->next_ns = scrub_get_next(
		s, start_ns, ret_report->n_bytes, n_total_bytes, ret_report->elapsed_ns);
	if (rc) {
		e->is_suspect = true;
		return rc;
	}
	if (check_is_over(e->check, &e->scrub_pass)) {
		e->scrub_pass = (struct check_pass){0};
		e->scrub_round = s->round;
	}
	return ret_report->n_tensors > 0 ? scrub_look_again(e, means, ret_err, ret_report) : 0;
}
