/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/size.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "proto/util/err.h"

int size_parse(const char *what, const char *text, struct err *ret_err, uint64_t *ret_bytes)
{
	static const char suffixes[] = "KMGT";
	char *end;
	unsigned shift = 0;

	errno = 0;
	unsigned long long n = strtoull(text, &end, 10);
	bool is_number = errno == 0 && end != text && *text >= '0' && *text <= '9' && n > 0;
	const char *suffix = *end ? strchr(suffixes, *end) : NULL;
	if (suffix && !end[1]) {
		shift = 10 * (unsigned)(suffix - suffixes + 1);
		end++;
	}
	if (!is_number || *end || n > UINT64_MAX >> shift)
		return err_set(ret_err, EINVAL,
			"%s: expected a number of bytes above 0, as 4096, 512M or 8G, found "
			"\"%s\"",
			what, text);
	*ret_bytes = (uint64_t)n << shift;
	return 0;
}
