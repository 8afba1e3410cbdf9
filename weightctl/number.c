/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/number.h"

#include <errno.h>
#include <string.h>

int number_parse_u64(const char *text, uint64_t *ret_value)
{
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (*end)
		return -EINVAL;
	if (errno)
		return -ERANGE;
	*ret_value = value;
	return 0;
}

int number_parse_u32(const char *text, uint32_t *ret_value)
{
	uint64_t value;
	int r = number_parse_u64(text, &value);

	if (r < 0)
		return r;
	if (value > UINT32_MAX)
		return -ERANGE;
	*ret_value = (uint32_t)value;
	return 0;
}

/* strtof follows the locale, but weightctl never sets one: it is "C". */
int number_parse_f32(const char *text, float low, float high, float *ret_value)
{
	char *end;

	if (!*text || !strchr("0123456789.-+", *text))
		return -EINVAL;
	float value = strtof(text, &end);
	if (*end || end == text)
		return -EINVAL;
	if (!(value >= low && value <= high))
		return -ERANGE;
	*ret_value = value;
	return 0;
}
