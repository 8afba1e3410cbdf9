/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/spirv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "proto/util/err.h"

/* Values of the SPIR-V specification: the header, opcodes, execution modes, decorations. */
enum {
	HEADER_WORDS = 5,
	OP_EXECUTION_MODE = 16,
	OP_CONSTANT = 43,
	OP_SPEC_CONSTANT = 50,
	OP_CONSTANT_COMPOSITE = 44,
	OP_SPEC_CONSTANT_COMPOSITE = 51,
	OP_DECORATE = 71,
	OP_EXECUTION_MODE_ID = 331,
	MODE_LOCAL_SIZE = 17,
	MODE_LOCAL_SIZE_ID = 38,
	DECORATION_SPEC_ID = 1,
	DECORATION_BUILT_IN = 11,
	BUILT_IN_WORKGROUP_SIZE = 25,
};
#define SPIRV_MAGIC UINT32_C(0x07230203)

struct module {
	const uint32_t *words;
	uint64_t n_words;
	const uint32_t *spec;
	uint32_t n_spec;
};

/* The instruction at *at, or NULL at the end; moves on. */
static const uint32_t *next(const struct module *m, uint64_t *at)
{
	if (*at >= m->n_words)
		return NULL;
	const uint32_t *i = m->words + *at;
	*at += i[0] >> 16;
	return i;
}

static uint32_t opcode(const uint32_t *instruction)
{
	return instruction[0] & 0xffff;
}

static uint32_t n_words(const uint32_t *instruction)
{
	return instruction[0] >> 16;
}

/* Instructions are whole, so that the walks below need no further check than n_words. */
static bool is_whole(const struct module *m)
{
	uint64_t at = HEADER_WORDS;

	while (at < m->n_words) {
		uint32_t n = m->words[at] >> 16;
		if (n == 0 || n > m->n_words - at)
			return false;
		at += n;
	}
	return true;
}

/* The value of a 32-bit constant, specialized where it has a constant_id. */
static bool get_constant(const struct module *m, uint32_t id, uint32_t *ret_value)
{
	bool is_found = false;
	uint64_t at = HEADER_WORDS;

	for (const uint32_t *i; (i = next(m, &at));)
		if ((opcode(i) == OP_CONSTANT || opcode(i) == OP_SPEC_CONSTANT) &&
			n_words(i) == 4 && i[2] == id) {
			*ret_value = i[3];
			is_found = true;
		}
	at = HEADER_WORDS;
	for (const uint32_t *i; (i = next(m, &at));)
		if (opcode(i) == OP_DECORATE && n_words(i) == 4 && i[1] == id &&
			i[2] == DECORATION_SPEC_ID && i[3] < m->n_spec)
			*ret_value = m->spec[i[3]];
	return is_found;
}

static bool get_constants(const struct module *m, const uint32_t ids[3], uint32_t ret_values[3])
{
	return get_constant(m, ids[0], &ret_values[0]) && get_constant(m, ids[1], &ret_values[1]) &&
	       get_constant(m, ids[2], &ret_values[2]);
}

/* The id of the composite that is decorated WorkgroupSize; 0 for none. It overrides LocalSize. */
static uint32_t find_size_composite(const struct module *m)
{
	uint64_t at = HEADER_WORDS;

	for (const uint32_t *i; (i = next(m, &at));)
		if (opcode(i) == OP_DECORATE && n_words(i) == 4 && i[2] == DECORATION_BUILT_IN &&
			i[3] == BUILT_IN_WORKGROUP_SIZE)
			return i[1];
	return 0;
}

static bool find_size(const struct module *m, uint32_t ret_size[3])
{
	uint32_t composite = find_size_composite(m);
	uint64_t at = HEADER_WORDS;
	bool is_found = false;

	for (const uint32_t *i; (i = next(m, &at));) {
		bool is_composite = opcode(i) == OP_CONSTANT_COMPOSITE ||
				    opcode(i) == OP_SPEC_CONSTANT_COMPOSITE;

		if (opcode(i) == OP_EXECUTION_MODE && n_words(i) == 6 && i[2] == MODE_LOCAL_SIZE) {
			memcpy(ret_size, i + 3, 3 * sizeof(*i));
			is_found = true;
		} else if (opcode(i) == OP_EXECUTION_MODE_ID && n_words(i) == 6 &&
			   i[2] == MODE_LOCAL_SIZE_ID) {
			is_found = get_constants(m, i + 3, ret_size);
		} else if (composite && is_composite && n_words(i) == 6 && i[2] == composite) {
			return get_constants(m, i + 3, ret_size);
		}
	}
	return is_found;
}

int vk_spirv_get_group_size(const uint32_t *words, uint64_t n_bytes, const uint32_t *spec,
	uint32_t n_spec, struct err *ret_err, uint32_t ret_size[3])
{
	struct module m = {.words = words, .n_words = n_bytes / 4, .spec = spec, .n_spec = n_spec};
	uint32_t size[3];

	if (!words || n_bytes % 4 || m.n_words < HEADER_WORDS || words[0] != SPIRV_MAGIC ||
		!is_whole(&m))
		return err_set(ret_err, EINVAL, "%" PRIu64 " bytes are no SPIR-V module", n_bytes);
	if (!find_size(&m, size))
		return err_set(ret_err, EINVAL, "the SPIR-V module states no workgroup size");
	memcpy(ret_size, size, sizeof(size));
	return 0;
}
