/* Calls as programs write them: arguments that are left out, options, None. C99 and C++11 both take this text. */
#include <reprise.h>
#include <stdio.h>

int main(void) {
    rp_tensor *places, *x = rp_arange(rp_i64(0), rp_f64(6));
    x = rp_view(x, RP_DIMS(2, 3));
    rp_tensor *twice = rp_add(x, rp_mul(x, rp_ones(RP_DIMS(3))), RP_OPTIONS(rp_add_options, .alpha = rp_f64(2)));
    rp_tensor *variance =
        rp_var(x, RP_DIMS(1), RP_OPTIONS(rp_var_options, .correction = rp_i64(0), .keepdim = RP_TRUE));
    rp_tensor *largest = rp_topk(x, 1, 1, true, true, &places), *low = rp_clamp(twice, rp_none(), rp_f64(5));
    bool good = rp_item_f64(rp_sum(x)) == 15 && rp_item_f64(rp_sum(rp_sum(x, RP_DIMS(0, 1), true))) == 15 &&
                rp_item_f64(rp_select(rp_sum(twice, RP_DIMS(1)), 0, 1)) == 36 && rp_size(variance, 1) == 1 &&
                rp_item_i64(rp_sum(places)) == 4 &&
                rp_item_f64(rp_sum(rp_topk(x, 1))) == rp_item_f64(rp_sum(largest)) && rp_item_f64(rp_sum(low)) == 23 &&
                rp_item_i64(rp_argmax(x)) == 5;
    if (!good) fprintf(stderr, "a call gave another result: %s\n", rp_error_message());
    return !good;
}
