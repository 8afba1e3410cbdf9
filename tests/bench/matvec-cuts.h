/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_MATVEC_CUTS_H
#define TESTS_BENCH_MATVEC_CUTS_H

/* The ways to cut a multiplication of few rows that bench-matvec measures. */
#include <stdbool.h>

#include "workerd/ops/matvec.h"

/* As struct op_matvec_shape, columns filled in; HOLD: as much as it takes. */
enum { HOLD = 255 };
struct variant {
	struct op_matvec_shape cut;
	bool has_next;
};

#define KEPT(rows, subgroups, groups, split, from, next)                                   \
	{                                                                                  \
		{rows, 0, 1, subgroups, groups, true, OP_MATVEC_##from, HOLD, split}, next \
	}
static const struct variant variants[] = {
	KEPT(1, 16, 132, 1, STAGED, false),
	KEPT(2, 16, 132, 1, STAGED, false),
	KEPT(2, 12, 132, 1, STAGED, false),
	KEPT(2, 8, 264, 1, STAGED, false),
	KEPT(2, 8, 132, 1, STAGED, false),
	KEPT(1, 4, 528, 1, STAGED, false),
	KEPT(2, 4, 528, 1, STAGED, false),
	KEPT(4, 16, 132, 2, STAGED, false),
	KEPT(1, 14, 132, 7, STAGED, false),
	KEPT(2, 14, 132, 7, STAGED, false),
	KEPT(4, 14, 132, 7, STAGED, false),
	KEPT(2, 7, 264, 7, STAGED, false),
	KEPT(2, 21, 132, 7, STAGED, false),
	KEPT(1, 16, 132, 1, OWN, false),
	KEPT(2, 16, 132, 1, OWN, false),
	KEPT(2, 8, 264, 1, OWN, false),
	KEPT(2, 14, 132, 7, OWN, false),
	KEPT(2, 16, 0, 1, STAGED, true),
	KEPT(2, 4, 0, 1, STAGED, true),
	KEPT(4, 7, 0, 7, STAGED, true),
	{{1, 0, 1, 4, 0, true, OP_MATVEC_STAGED, 0, 0}, false},
	{{1, 0, 2, 8, 0, true, OP_MATVEC_STAGED, 0, 0}, false},
	{{2, 0, 1, 4, 0, true, OP_MATVEC_STAGED, 0, 0}, false},
	{{2, 0, 1, 4, 0, false, OP_MATVEC_STAGED, 0, 0}, false},
	{{4, 0, 1, 4, 0, true, OP_MATVEC_STAGED, 0, 0}, false},
	{{4, 0, 1, 4, 0, false, OP_MATVEC_STAGED, 0, 0}, false},
	{{2, 0, 1, 8, 0, true, OP_MATVEC_OWN, 0, 0}, false},
	{{2, 0, 1, 16, 0, false, OP_MATVEC_STAGED, 0, 0}, true},
};
static const struct variant small_variants[] = {
	{{2, 0, 1, 1, 2, true, OP_MATVEC_STAGED, HOLD, 0}, false},
	{{2, 0, 1, 1, 0, false, OP_MATVEC_STAGED, 0, 0}, false},
	{{1, 0, 1, 1, 0, false, OP_MATVEC_STAGED, 0, 0}, false},
};

#endif
