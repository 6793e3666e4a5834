/* Tensors: made from data, combined with broadcasting, viewed without copying, reduced, printed. A scope owns what is made
 * inside it, and one check at the end finds the first failure of all the calls before it. */
#include <reprise.h>
#include <stdio.h>

static void show(const char *what, rp_tensor *t) {
    char text[1024];
    rp_format(t, text, sizeof text);
    printf("%s = %s\n", what, text);
}

int main(void) {
    rp_scope scope = rp_scope_begin();
    const float numbers[] = {1, 2, 3, 4, 5, 6};
    rp_tensor *a = rp_from_data(numbers, RP_DIMS(2, 3), RP_F32);
    rp_tensor *row = rp_from_data(numbers, RP_DIMS(3), RP_F32);
    show("a", a);
    show("a + row", rp_add(a, row)); /* (2, 3) + (3) */

    rp_tensor *columns = rp_transpose(a, 0, 1); /* a view: same memory, other strides */
    show("a transposed", columns);
    rp_fill_(rp_select(a, 0, 0), rp_i64(0)); /* written through another view */
    show("after a[0] = 0", columns);

    show("sum over rows", rp_sum(a, RP_DIMS(0)));
    show("softmax", rp_softmax(a, -1));
    printf("mean %.4f, version %llu\n", rp_item_f64(rp_mean(a)), (unsigned long long)rp_version(a));

    /* A mistake is a message, not a crash; what follows passes the error on. */
    rp_tensor *bad = rp_relu(rp_matmul(a, a));
    printf("error tensor: %s\n", rp_is_error(bad) ? rp_error_message() : "none");
    rp_error_take();

    rp_scope_end(scope, NULL, 0);
    return rp_failed();
}
