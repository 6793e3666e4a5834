/* examples/19_images.c over files as MNIST and CIFAR-10 have them, and over none, which are .npy: what it prints says that it learnt
   what lies in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int images_main(int argc, char **argv);
#define main images_main
#include "../examples/19_images.c"
#undef main

enum { SIDE = 28, PLANE = 32 * 32, RECORD = 1 + 3 * PLANE };

static unsigned char noise(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (unsigned char)(state >> 25); /* below 128 */
}

/* A bright stripe of rows, of which each class has another. */
static void draw(unsigned char *image, int side, int class) {
    for (int i = 0; i < side * side; i++)
        image[i] = (unsigned char)(noise() / 2 + (i / side * CLASSES / side == class ? 150 : 0));
}

static void put(const char *path, const void *head, size_t head_bytes, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, head_bytes, f), head_bytes);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

/* The numbers of its line "%lld of %lld are right". */
static void learns(int argc, char **argv, long long rows) {
    (void)fflush(stdout);
    const int before = dup(STDOUT_FILENO);
    FILE *out = fopen("images.out", "wb+");
    assert_non_null(out);
    assert_true(before >= 0 && dup2(fileno(out), STDOUT_FILENO) >= 0);
    const int status = images_main(argc, argv);
    (void)fflush(stdout);
    assert_true(dup2(before, STDOUT_FILENO) >= 0);
    (void)close(before);
    char text[128] = "";
    rewind(out);
    assert_non_null(fgets(text, sizeof text, out));
    (void)fclose(out);
    (void)unlink("images.out");
    long long right = 0, all = 0;
    if (status != 0 || sscanf(text, "%lld of %lld are right", &right, &all) != 2) fail_msg("%d: %s", status, text);
    assert_int_equal(all, rows);
    if (right < rows * 9 / 10) fail_msg("%s", text);
    rp_set_grad_enabled(true);
}

static void idx(void **state) {
    (void)state;
    static unsigned char images[ROWS * SIDE * SIDE], labels[ROWS];
    const unsigned char of_images[] = {0, 0, 8, 3, 0, 0, ROWS >> 8, ROWS & 255, 0, 0, 0, SIDE, 0, 0, 0, SIDE},
                        of_labels[] = {0, 0, 8, 1, 0, 0, ROWS >> 8, ROWS & 255};
    for (int k = 0; k < ROWS; k++) draw(images + k * SIDE * SIDE, SIDE, labels[k] = (unsigned char)(k * 7 % CLASSES));
    put("images.idx", of_images, sizeof of_images, images, sizeof images);
    put("labels.idx", of_labels, sizeof of_labels, labels, sizeof labels);
    learns(3, (char *[]){(char[]){"images"}, (char[]){"images.idx"}, (char[]){"labels.idx"}, NULL}, ROWS);
    (void)unlink("images.idx");
    (void)unlink("labels.idx");
}

static void cifar(void **state) {
    (void)state;
    static unsigned char records[ROWS * RECORD];
    for (int k = 0; k < ROWS; k++) {
        unsigned char *r = records + k * RECORD;
        r[0] = (unsigned char)(k * 3 % CLASSES);
        for (int c = 0; c < 3; c++) draw(r + 1 + c * PLANE, 32, r[0]);
    }
    put("images.bin", "", 0, records, sizeof records);
    learns(2, (char *[]){(char[]){"images"}, (char[]){"images.bin"}, NULL}, ROWS);
    (void)unlink("images.bin");
}

static void npy(void **state) {
    (void)state;
    learns(1, (char *[]){(char[]){"images"}, NULL}, ROWS);
    assert_int_not_equal(access("images.npy", F_OK), 0);
}

/* What is no such file is an error, which is told. */
static void bad_files(void **state) {
    (void)state;
    put("images.bin", "", 0, "no image", 8);
    assert_int_not_equal(images_main(2, (char *[]){(char[]){"images"}, (char[]){"images.bin"}, NULL}), 0);
    assert_int_not_equal(rp_error_take(), RP_OK);
    assert_int_not_equal(images_main(3, (char *[]){(char[]){"images"}, (char[]){"images.bin"}, (char[]){"none"}, NULL}),
                         0);
    assert_int_not_equal(rp_error_take(), RP_OK);
    (void)unlink("images.bin");
    rp_set_grad_enabled(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(npy), cmocka_unit_test(idx), cmocka_unit_test(cifar),
                                       cmocka_unit_test(bad_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
