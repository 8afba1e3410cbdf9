/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/refusal.h"

#include "tests/layer/config.h"
#include "tests/layer/request.h"

void refusal_init(struct refusal *r, const struct config *config)
{
	*r = (struct refusal){.config = config, .lock = PTHREAD_MUTEX_INITIALIZER};
}

void refusal_fini(struct refusal *r)
{
	pthread_mutex_destroy(&r->lock);
}

/* A driver looks at all pages of the range, so one area of a refused kind is enough. */
static bool is_refused_import(struct refusal *r, const struct request *request)
{
	bool is_dma_buf = request->import_type == VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT;
	uint32_t kinds = request->pointer ? request->mapping.kinds
			 : is_dma_buf     ? CONFIG_REFUSE_DMA_BUF
					  : 0;

	if (!(kinds & r->config->refuse))
		return false;
	return ++r->n_matching >= r->config->refuse_from;
}

static const char *judge(struct refusal *r, const struct request *request)
{
	const struct config *c = r->config;
	uint64_t n = ++r->n_allocations;

	/* NVIDIA 580: after a refused import all else fails in the same way, until the instance is
	 * made anew. */
	if (r->is_poisoned)
		return "poison";
	if (request->pointer && request->mapping.kinds & mapping_bit(MAPPING_NONE, false))
		return "unmapped";
	if (c->fail_alloc && (n == c->fail_alloc || (c->fail_onward && n > c->fail_alloc)))
		return "fail-alloc";
	if (request->info->allocationSize > c->max_alloc_bytes)
		return "max-alloc";
	if (!is_refused_import(r, request))
		return NULL;
	r->is_poisoned = c->poison;
	return "refuse";
}

const char *refusal_judge(struct refusal *r, const struct request *request)
{
	pthread_mutex_lock(&r->lock);
	const char *reason = judge(r, request);
	pthread_mutex_unlock(&r->lock);
	return reason;
}
