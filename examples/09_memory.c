/* Memory of others: an array of the program's own as a tensor without a copy, given back by a deleter; the same memory
 * handed to another library by DLPack and taken in again. */
#include <reprise.h>
#include <stdio.h>

static void given_back(void *ctx) { ++*(int *)ctx; }

int main(void) {
    float samples[6] = {1, 2, 3, 4, 5, 6};
    int returned = 0;
    rp_scope scope = rp_scope_begin();
    /* Every second element: strides are in elements. */
    const int64_t size[] = {3}, stride[] = {2};
    rp_tensor *odd = rp_from_blob(samples, size, 1, stride, RP_F32, rp_cpu(), given_back, &returned);
    rp_mul_scalar_(odd, rp_i64(10));
    printf("written in place: %g %g %g %g %g %g\n", samples[0], samples[1], samples[2], samples[3], samples[4],
           samples[5]);

    struct DLManagedTensorVersioned *managed = rp_to_dlpack(odd); /* keeps the memory alive */
    rp_tensor *again = rp_from_dlpack(managed);                   /* owns `managed` now */
    printf("same memory: %s, sum %g\n", rp_data(again) == (void *)samples ? "yes" : "no", rp_item_f64(rp_sum(again)));
    int early = returned;
    rp_scope_end(scope, NULL, 0);
    printf("given back %d time%s\n", returned, returned == 1 ? "" : "s");
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || early || returned != 1 || samples[2] != 30;
}
