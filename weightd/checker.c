/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/checker.h"

#include <string.h>
#include <time.h>

#include "proto/util/clock.h"
#include "weightd/check.h"
#include "weightd/checksum.h"
#include "weightd/export.h"

#define CHECKER_PERIOD_NS (UINT64_C(3600) * 1000000000)

void checker_init(struct checker *c, const struct sum_key *key, const atomic_bool *is_given_up)
{
	*c = (struct checker){.key = key, .is_given_up = is_given_up};
}

void checker_start_scrub(
	struct checker *c, uint64_t period_ns, uint32_t budget_percent, bool is_software)
{
	if (period_ns == CHECKER_DEFAULT_NS)
		period_ns = is_software ? 0 : CHECKER_PERIOD_NS;
	c->scrub = (struct scrub){
		.period_ns = period_ns, .budget_percent = budget_percent, .round = 1};
}

void checker_drop_device(struct checker *c)
{
	c->checksum = checksum_free(c->checksum);
}

static int checker_get_means(
	struct checker *c, struct vk_device *d, struct err *ret_err, struct check_means *ret_means)
{
	int rc = 0;

	if (d && !c->checksum)
		rc = checksum_new(d, c->key, ret_err, &c->checksum);
	if (rc)
		return rc == CHECKSUM_DEVICE_LOST ? CHECK_DEVICE_LOST : rc;
	*ret_means = (struct check_means){
		.key = c->key, .checksum = c->checksum, .is_given_up = c->is_given_up};
	return 0;
}

int checker_run(struct checker *c, struct vk_device *d, struct export *e, struct err *ret_err,
	struct check_report *ret_report)
{
	struct check_means means;
	int rc = checker_get_means(c, d, ret_err, &means);

	memset(ret_report, 0, sizeof(*ret_report));
	if (rc == 0)
		rc = check_run(e->check, e, &means, CHECK_ALL, ret_err, ret_report);
	if (ret_report->n_tensors > 0)
		e->is_suspect = true;
	return rc;
}

struct export *checker_find_due(struct checker *c, struct export *first)
{
	if (!c->scrub.period_ns || clock_now_ns() < c->scrub.next_ns)
		return NULL;
	return scrub_find(&c->scrub, first);
}

uint64_t checker_get_due_ns(struct checker *c, struct export *first)
{
	return c->scrub.period_ns && scrub_find(&c->scrub, first) ? c->scrub.next_ns : UINT64_MAX;
}

int checker_scrub(struct checker *c, struct vk_device *d, struct export *e, uint64_t n_total_bytes,
	struct err *ret_err, struct check_report *ret_report)
{
	struct check_means means;
	int rc = checker_get_means(c, d, ret_err, &means);

	if (rc == 0)
		return scrub_run(&c->scrub, e, &means, n_total_bytes, ret_err, ret_report);
	e->is_suspect = true;
	return rc;
}
