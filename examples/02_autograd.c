/* Gradients: of a scalar into .grad, by rp_grad, of gradients, and through a hook. f(x) = sum(x^3), f' = 3 x^2, f'' = 6 x. */
#include <reprise.h>
#include <stdio.h>

static void show(const char *what, rp_tensor *t) {
    char text[256];
    rp_format(t, text, sizeof text);
    printf("%s = %s\n", what, text);
}

static rp_tensor *f(rp_tensor *x) { return rp_sum(rp_pow_scalar(x, rp_i64(3))); }

/* Gets the gradient that arrives, and may replace it. */
static rp_tensor *halve(void *ctx, rp_tensor *grad) {
    (void)ctx;
    return rp_mul_scalar(grad, rp_f64(0.5));
}

int main(void) {
    rp_scope scope = rp_scope_begin();
    const float numbers[] = {1, 2, 3};
    rp_tensor *x = rp_from_data(numbers, RP_DIMS(3), RP_F32);
    rp_set_requires_grad(x, true);

    rp_backward(f(x), NULL, NULL);
    show("f'(x)", rp_grad_of(x));
    rp_backward(f(x), NULL, NULL); /* gradients add up until they are cleared */
    show("twice", rp_grad_of(x));
    rp_set_grad(x, NULL);

    rp_tensor *y = f(x), *first = NULL, *second = NULL;
    rp_grad(&y, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &first);
    rp_tensor *sum = rp_sum(first);
    rp_grad(&sum, 1, &x, 1, NULL, NULL, &second);
    show("f''(x)", second);

    uint64_t id = rp_register_hook(x, halve, NULL);
    rp_backward(f(x), NULL, NULL);
    show("f'(x) halved by a hook", rp_grad_of(x));
    rp_remove_hook(x, id);

    if (rp_failed()) printf("%s\n", rp_error_message());
    rp_scope_end(scope, NULL, 0);
    return rp_failed();
}
