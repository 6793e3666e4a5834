/* The reference of each op, by name and by number: a family a file (ref_FAMILY.c). */
#include "ref/ref_case.h"

static const ref_family *const families[] = {&ref_pointwise, &ref_reduce, &ref_view, &ref_index,
                                             &ref_matrix,    &ref_scan,   &ref_pool};
enum { FAMILIES = sizeof families / sizeof *families };

const ref_op *ref_at(size_t index) {
    for (size_t f = 0; f < FAMILIES; f++) {
        if (index < families[f]->n) return &families[f]->ops[index];
        index -= families[f]->n;
    }
    return NULL;
}

const ref_op *ref_find(const char *name) {
    for (size_t i = 0; ref_at(i); i++) {
        if (strcmp(ref_at(i)->name, name) == 0) return ref_at(i);
    }
    return NULL;
}
