/* Update rules over lists of any length, for what is no optimizer (clip.c). */
#ifndef RP_NN_UPDATE_H
#define RP_NN_UPDATE_H

#include <reprise_nn.h>

/* foreach_update_ of n tensors, in as few calls as its operands allow; other NULL: the rule has none. */
rp_status rp__update_lists_of(const char *rule, rp_tensor *const *self, rp_tensor *const *other, size_t n,
                              rp_tensor *step, rp_tensor *extra, rp_tensor *found_inf, const double *numbers,
                              size_t n_numbers);

size_t rp__average_size(const rp_average *a); /* how many tensors it has */

#endif
