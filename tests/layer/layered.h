/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_LAYERED_H
#define TESTS_LAYER_LAYERED_H

/*
 * For tests under VK_LAYER_WEIGHTD_simulate (layer.c says what can be set): what each case
 * simulates, and the log it leaves. An instance takes the variables as they are when it is made.
 */
#include "tests/case.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <vulkan/vulkan_core.h>

#define LAYERED_NAME "VK_LAYER_WEIGHTD_simulate"

/* A GPU with 8 GiB, a small BAR and much host memory; types: VRAM, BAR, host, host cached. */
#define LAYERED_GPU "device:8G;device+host:256M;host,host+cached:16G"

enum { LAYERED_VRAM, LAYERED_BAR, LAYERED_HOST, LAYERED_CACHED };

static char layered_log_path[] = "/tmp/weightd-layer-XXXXXX";

/* For main: a test that ran without the layer would prove nothing. */
static inline void layered_require(void)
{
	VkLayerProperties layers[64];
	uint32_t n = 64;
	bool is_there = false;
	const char *enabled = getenv("VK_INSTANCE_LAYERS");

	(void)vkEnumerateInstanceLayerProperties(&n, layers);
	for (uint32_t i = 0; i < n; i++)
		is_there |= !strcmp(layers[i].layerName, LAYERED_NAME);
	if (is_there && enabled && strstr(enabled, LAYERED_NAME))
		return;
	fprintf(stderr, "%s is not there: see VK_ADD_LAYER_PATH and VK_INSTANCE_LAYERS\n",
		LAYERED_NAME);
	exit(1);
}

/* name without WEIGHTD_LAYER_ */
static inline void layered_set(const char *name, const char *value)
{
	char full[64];

	snprintf(full, sizeof(full), "WEIGHTD_LAYER_%s", name);
	assert_int_equal(setenv(full, value, 1), 0);
}

/* Forgets what was set. */
static inline void layered_clear(void)
{
	static const char *const names[] = {"LOG", "REFUSE", "REFUSE_FROM", "POISON", "FAIL_ALLOC",
		"HEAPS", "BUDGET", "HIDE", "MAX_ALLOC", "MAX_BUFFER", "DMA_BUF", "QUEUES"};
	char full[64];

	for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(full, sizeof(full), "WEIGHTD_LAYER_%s", names[i]);
		unsetenv(full);
	}
}

static inline int layered_setup(void **state)
{
	layered_clear();
	return case_setup(state);
}

#define LAYERED_CASE(f) cmocka_unit_test_setup_teardown(f, layered_setup, case_teardown)

/* Logs into an empty file, which layered_take_log removes. */
static inline void layered_start_log(void)
{
	strcpy(layered_log_path + sizeof(layered_log_path) - 7, "XXXXXX");
	int fd = mkstemp(layered_log_path);

	assert_true(fd >= 0);
	close(fd);
	layered_set("LOG", layered_log_path);
}

/* The lines so far but for maps, an array that the caller decrefs. */
static inline json_t *layered_read_log(void)
{
	json_t *lines = json_array();
	FILE *f = fopen(layered_log_path, "re");
	char *line = NULL;
	size_t n_line = 0;

	assert_non_null(f);
	while (getline(&line, &n_line, f) > 0) {
		json_error_t e;
		json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &e);

		if (!object)
			fail_msg("log: %s: %s", e.text, line);
		if (strcmp(json_string_value(json_object_get(object, "call")), "map"))
			json_array_append(lines, object);
		json_decref(object);
	}
	free(line);
	fclose(f);
	return lines;
}

static inline json_t *layered_take_log(void)
{
	json_t *lines = layered_read_log();

	unlink(layered_log_path);
	return lines;
}

/* The text of a field; a dot leads into an object: "import.kind". "" where there is none. */
static inline const char *layered_text(const json_t *line, const char *field)
{
	const char *dot = strchr(field, '.');
	char outer[32];

	if (!dot) {
		const char *text = json_string_value(json_object_get(line, field));
		return text ? text : "";
	}
	snprintf(outer, sizeof(outer), "%.*s", (int)(dot - field), field);
	return layered_text(json_object_get(line, outer), dot + 1);
}

/* The number of a field, -1 where there is none. */
static inline long long layered_number(const json_t *line, const char *field)
{
	const json_t *value = json_object_get(line, field);

	return json_is_integer(value) ? json_integer_value(value) : -1;
}

#endif
