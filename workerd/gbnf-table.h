/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_GBNF_TABLE_H
#define WORKERD_GBNF_TABLE_H

/* A rule table while it is written and judged, for workerd/gbnf alone. */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct gbnf;
struct utf8_class_range;

struct gbnf_table_rule {
	const char *name; /* of a group or repetition: the rule's around it; not NUL-terminated */
	uint32_t n_name;
	const char *at; /* where it is first named, or defined */
	bool is_defined;
	bool is_loop; /* made of `*`: it may follow itself without a byte between */
};

struct gbnf_table_alternate {
	uint32_t rule;
	uint32_t element;
};

struct gbnf_table_class {
	struct utf8_class_range *ranges;
	uint32_t n;
	uint32_t hash;
	uint16_t state;
};

struct gbnf_table {
	struct gbnf *gbnf; /* its classes and elements grow here */
	struct gbnf_table_rule *rules;
	uint32_t n_rules;
	uint32_t n_rules_room;
	struct gbnf_table_alternate *alternates; /* in the order of their ends */
	uint32_t n_alternates;
	uint32_t n_alternates_room;
	uint32_t n_elements_room;
	uint32_t *slots;                  /* [GBNF_TABLE_SLOTS] rule + 1 by name, linear probing */
	struct gbnf_table_class *classes; /* those that are there already */
	uint32_t n_classes;
	uint32_t n_classes_room;
};

enum { GBNF_TABLE_SLOTS = 1 << 17 };

int must_check gbnf_table_init(struct gbnf_table *t);
void gbnf_table_fini(struct gbnf_table *t);

/* A rule by name, a new one where there is none yet. -E2BIG, -ENOMEM. */
int must_check gbnf_table_get_rule(struct gbnf_table *t, const char *name, uint32_t n_name,
	const char *at, uint32_t *ret_rule);

/* A rule without a name of its own, for a part of `outer`. */
int must_check gbnf_table_make_rule(struct gbnf_table *t, uint32_t outer, uint32_t *ret_rule);

/* n elements and an end. */
int must_check gbnf_table_add_alternate(
	struct gbnf_table *t, uint32_t rule, const uint32_t *elements, uint32_t n);

/* The element of a class; ranges as utf8_class_normalise wants them. -EINVAL: it is empty. */
int must_check gbnf_table_get_class(struct gbnf_table *t, struct utf8_class_range *ranges,
	uint32_t n, bool is_negated, uint32_t *ret_element);

/* Alternates go into gbnf, rule by rule. */
int must_check gbnf_table_finish(struct gbnf_table *t);

/* GBNF_TABLE_LEFT or _ENDLESS with the first rule that is so; 0: neither. After finish. */
enum { GBNF_TABLE_LEFT = 1, GBNF_TABLE_ENDLESS = 2 };
int must_check gbnf_table_judge(const struct gbnf_table *t, uint32_t *ret_rule);

#endif
