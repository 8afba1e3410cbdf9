/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/layer/abilities.h"
#include "tests/layer/mapping.h"

/* A variable being read: what is left of it, and how it began, for the refusal. */
struct text {
	const char *name;
	const char *value;
	const char *at;
};

static int refuse(const struct text *t, const char *expected, struct err *ret_err)
{
	return err_set(
		ret_err, EINVAL, "%s: expected %s, found \"%s\"", t->name, expected, t->value);
}

/* False where the variable is unset or empty. */
static bool start(const char *name, struct text *ret_text)
{
	const char *value = getenv(name);

	*ret_text = (struct text){.name = name, .value = value, .at = value};
	return value && *value;
}

static bool skip(struct text *t, char c)
{
	if (*t->at != c)
		return false;
	t->at++;
	return true;
}

/* Takes `word` where it stands, whole. */
static bool skip_word(struct text *t, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(t->at, word, n) || (t->at[n] && !strchr(",;:+-", t->at[n])))
		return false;
	t->at += n;
	return true;
}

static bool read_number(struct text *t, uint64_t *ret)
{
	char *end;

	if (*t->at < '0' || *t->at > '9')
		return false;
	errno = 0;
	unsigned long long value = strtoull(t->at, &end, 10);
	if (errno)
		return false;
	t->at = end;
	*ret = value;
	return true;
}

/* 4096, 64K, 256M, 8G */
static bool read_size(struct text *t, uint64_t *ret)
{
	uint64_t value;
	unsigned shift = 0;

	if (!read_number(t, &value))
		return false;
	if (skip(t, 'K'))
		shift = 10;
	else if (skip(t, 'M'))
		shift = 20;
	else if (skip(t, 'G'))
		shift = 30;
	return !__builtin_mul_overflow(value, UINT64_C(1) << shift, ret);
}

/* KIND[-ro|-rw], all for every kind */
static bool read_kinds(struct text *t, uint32_t *refuse_bits)
{
	bool has_ro = true, has_rw = true;

	if (skip_word(t, "dma-buf")) {
		*refuse_bits |= CONFIG_REFUSE_DMA_BUF;
		return true;
	}
	uint32_t kinds = skip_word(t, "all") ? UINT32_MAX : 0;

	for (unsigned k = MAPPING_ANON; !kinds && k < MAPPING_N_KINDS; k++)
		if (skip_word(t, mapping_kind_name(k)))
			kinds = UINT32_C(1) << k;
	if (skip(t, '-')) {
		has_rw = skip_word(t, "rw");
		has_ro = !has_rw && skip_word(t, "ro");
	}
	for (unsigned k = MAPPING_ANON; k < MAPPING_N_KINDS; k++)
		if (kinds >> k & 1)
			*refuse_bits |= (has_rw ? mapping_bit(k, true) : 0) |
					(has_ro ? mapping_bit(k, false) : 0);
	return kinds && (has_ro || has_rw);
}

static int read_refuse(struct err *ret_err, struct config *c)
{
	struct text t;
	bool is_fine;

	if (!start("WEIGHTD_LAYER_REFUSE", &t))
		return 0;
	do
		is_fine = read_kinds(&t, &c->refuse);
	while (is_fine && skip(&t, ','));
	if (!is_fine || *t.at)
		return refuse(&t,
			"some of anon, private, memfd, tmpfs, file, all, with -ro or -rw, and "
			"dma-buf",
			ret_err);
	return 0;
}

static int read_counts(struct err *ret_err, struct config *c)
{
	struct text t;
	uint64_t flag = 0;

	c->refuse_from = 1;
	if (start("WEIGHTD_LAYER_REFUSE_FROM", &t) &&
		(!read_number(&t, &c->refuse_from) || *t.at || !c->refuse_from || !c->refuse))
		return refuse(&t, "a number from 1, beside WEIGHTD_LAYER_REFUSE", ret_err);
	if (start("WEIGHTD_LAYER_POISON", &t) && (!read_number(&t, &flag) || *t.at || flag > 1))
		return refuse(&t, "0 or 1", ret_err);
	c->poison = flag;
	if (!start("WEIGHTD_LAYER_FAIL_ALLOC", &t))
		return 0;
	bool is_number = read_number(&t, &c->fail_alloc);
	c->fail_onward = skip(&t, '+');
	if (!is_number || *t.at || !c->fail_alloc)
		return refuse(&t, "N or N+, a number from 1", ret_err);
	return 0;
}

/* device, host, cached, none joined by + */
static bool read_type(struct text *t, VkMemoryPropertyFlags *ret_flags)
{
	VkMemoryPropertyFlags flags = 0;

	do {
		if (skip_word(t, "device"))
			flags |= VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
		else if (skip_word(t, "host"))
			flags |= VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
				 VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
		else if (skip_word(t, "cached"))
			flags |= VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
		else if (!skip_word(t, "none"))
			return false;
	} while (skip(t, '+'));
	*ret_flags = flags;
	return true;
}

/* TYPE{,TYPE}:SIZE */
static bool read_heap(struct text *t, VkPhysicalDeviceMemoryProperties *m)
{
	VkMemoryHeap *heap = &m->memoryHeaps[m->memoryHeapCount];

	do {
		VkMemoryType *type = &m->memoryTypes[m->memoryTypeCount];

		if (m->memoryTypeCount == VK_MAX_MEMORY_TYPES ||
			!read_type(t, &type->propertyFlags))
			return false;
		type->heapIndex = m->memoryHeapCount;
		if (type->propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
			heap->flags = VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
		m->memoryTypeCount++;
	} while (skip(t, ','));
	m->memoryHeapCount++;
	return skip(t, ':') && read_size(t, &heap->size) && heap->size > 0;
}

static int read_heaps(struct err *ret_err, struct config *c)
{
	struct text t;
	bool is_fine;

	if (!start("WEIGHTD_LAYER_HEAPS", &t))
		return 0;
	do
		is_fine = c->memory.memoryHeapCount < VK_MAX_MEMORY_HEAPS &&
			  read_heap(&t, &c->memory);
	while (is_fine && skip(&t, ';'));
	if (!is_fine || *t.at)
		return refuse(
			&t, "TYPE{,TYPE}:SIZE{;...} with types of device+host+cached", ret_err);
	c->has_heaps = true;
	return 0;
}

static int read_budget(struct err *ret_err, struct config *c)
{
	struct text t;
	unsigned i = 0;
	bool is_fine;

	for (unsigned h = 0; h < VK_MAX_MEMORY_HEAPS; h++)
		c->budgets[h].n_bytes = UINT64_MAX;
	if (!start("WEIGHTD_LAYER_BUDGET", &t))
		return 0;
	do {
		struct config_budget *b = &c->budgets[i];

		is_fine = i++ < VK_MAX_MEMORY_HEAPS &&
			  (skip_word(&t, "full") || read_size(&t, &b->n_bytes)) &&
			  (!skip(&t, '-') || read_size(&t, &b->step_bytes));
	} while (is_fine && skip(&t, ';'));
	if (!is_fine || *t.at)
		return refuse(&t, "SIZE[-STEP]{;...}, a heap each, full for its size", ret_err);
	c->has_budget = true;
	return 0;
}

static bool read_name(struct text *t, struct config *c)
{
	char *name = c->hidden[c->n_hidden];
	size_t n = strcspn(t->at, ",");

	if (n >= sizeof(c->hidden[0]) || c->n_hidden == CONFIG_MAX_HIDDEN)
		return false;
	memcpy(name, t->at, n);
	name[n] = '\0';
	c->n_hidden++;
	t->at += n;
	return !strncmp(name, "VK_", 3) || abilities_is_feature(name);
}

static int read_hidden(struct err *ret_err, struct config *c)
{
	struct text t;
	bool is_fine;

	if (!start("WEIGHTD_LAYER_HIDE", &t))
		return 0;
	do
		is_fine = read_name(&t, c);
	while (is_fine && skip(&t, ','));
	if (!is_fine || *t.at)
		return refuse(
			&t, "names of extensions and of features that weightd asks for", ret_err);
	return 0;
}

static int read_limit(const char *name, struct err *ret_err, uint64_t *ret)
{
	struct text t;

	*ret = UINT64_MAX;
	if (start(name, &t) && (!read_size(&t, ret) || *t.at || !*ret))
		return refuse(&t, "a size", ret_err);
	return 0;
}

static bool read_way(struct text *t, uint32_t *dma_buf)
{
	if (skip_word(t, "export"))
		*dma_buf |= CONFIG_DMA_BUF_EXPORT;
	else if (skip_word(t, "import"))
		*dma_buf |= CONFIG_DMA_BUF_IMPORT;
	else if (skip_word(t, "memfd"))
		*dma_buf |= CONFIG_DMA_BUF_IMPORT | CONFIG_DMA_BUF_MEMFD;
	else if (skip_word(t, "apart"))
		*dma_buf |= CONFIG_DMA_BUF_EXPORT | CONFIG_DMA_BUF_APART;
	else
		return false;
	return true;
}

static int read_dma_buf(struct err *ret_err, struct config *c)
{
	struct text t;
	bool is_fine;

	if (!start("WEIGHTD_LAYER_DMA_BUF", &t))
		return 0;
	do
		is_fine = read_way(&t, &c->dma_buf);
	while (is_fine && skip(&t, ','));
	if (!is_fine || *t.at)
		return refuse(&t, "some of export, import, memfd, apart", ret_err);
	return 0;
}

static bool read_family(struct text *t, struct config_family *ret_family)
{
	uint64_t n;
	VkQueueFlags flags = 0;

	do {
		if (skip_word(t, "graphics"))
			flags |= VK_QUEUE_GRAPHICS_BIT;
		else if (skip_word(t, "compute"))
			flags |= VK_QUEUE_COMPUTE_BIT;
		else if (skip_word(t, "transfer"))
			flags |= VK_QUEUE_TRANSFER_BIT;
		else
			return false;
	} while (skip(t, '+'));
	if (!skip(t, ':') || !read_number(t, &n) || n == 0 || n > 64)
		return false;
	*ret_family = (struct config_family){.flags = flags, .n_queues = (uint32_t)n};
	return true;
}

static int read_families(struct err *ret_err, struct config *c)
{
	struct text t;
	bool is_fine;

	if (!start("WEIGHTD_LAYER_QUEUES", &t))
		return 0;
	do {
		is_fine = c->n_families < CONFIG_MAX_FAMILIES &&
			  read_family(&t, &c->families[c->n_families]);
		c->n_families++;
	} while (is_fine && skip(&t, ';'));
	if (!is_fine || *t.at)
		return refuse(
			&t, "FLAGS:COUNT{;...} with flags of graphics+compute+transfer", ret_err);
	return 0;
}

int config_read(struct err *ret_err, struct config *ret_config)
{
	struct config c = {.log_path = getenv("WEIGHTD_LAYER_LOG")};

	if (c.log_path && !*c.log_path)
		c.log_path = NULL;
	int r = read_refuse(ret_err, &c);
	if (!r)
		r = read_counts(ret_err, &c);
	if (!r)
		r = read_heaps(ret_err, &c);
	if (!r)
		r = read_budget(ret_err, &c);
	if (!r)
		r = read_hidden(ret_err, &c);
	if (!r)
		r = read_limit("WEIGHTD_LAYER_MAX_ALLOC", ret_err, &c.max_alloc_bytes);
	if (!r)
		r = read_limit("WEIGHTD_LAYER_MAX_BUFFER", ret_err, &c.max_buffer_bytes);
	if (!r)
		r = read_dma_buf(ret_err, &c);
	if (!r)
		r = read_families(ret_err, &c);
	if (!r)
		*ret_config = c;
	return r;
}

bool config_hides(const struct config *c, const char *name)
{
	for (uint32_t i = 0; i < c->n_hidden; i++)
		if (!strcmp(c->hidden[i], name))
			return true;
	return false;
}
