/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/output.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/utf8.h"

json_t *output_string(const char *text, uint64_t n_bytes)
{
	static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
	const uint8_t *data = (const uint8_t *)text;
	_cleanup_(cleanup_free)
	char *clean = malloc(n_bytes * 3 + 1);
	uint64_t n = 0;

	if (!clean)
		return NULL;
	for (uint64_t at = 0; at < n_bytes;) {
		int n_char = utf8_char(data + at, n_bytes - at);

		memcpy(clean + n, n_char > 0 ? text + at : replacement, n_char > 0 ? n_char : 3);
		n += n_char > 0 ? n_char : 3;
		at += n_char > 0 ? n_char : 1;
	}
	return json_stringn_nocheck(clean, n);
}

json_t *output_name(const char *text)
{
	return output_string(text ? text : "", text ? strlen(text) : 0);
}

json_t *output_ids(const uint32_t *ids, uint64_t n_ids)
{
	json_t *array = json_array();

	for (uint64_t i = 0; array && i < n_ids; i++) {
		if (json_array_append_new(array, json_integer(ids[i])) < 0) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}

int output_json(json_t *object)
{
	if (!object)
		return -ENOMEM;
	int r = json_dumpf(object, stdout, JSON_PRESERVE_ORDER);
	putchar('\n');
	json_decref(object);
	return r < 0 && !ferror(stdout) ? -ENOMEM : 0;
}

void output_clean(const char *text)
{
	while (text && *text) {
		int n_control = utf8_control(text);

		putchar(n_control ? '?' : *text);
		text += n_control ? n_control : 1;
	}
}

int output_flush(struct err *ret_err)
{
	errno = 0;
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	int code = errno ? errno : EIO;
	return err_set(ret_err, code, "stdout: %s", strerror(code));
}
