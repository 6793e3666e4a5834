/* reprise_cxx.h - RP_DIMS, RP_TENSORS and RP_OPTIONS for C++11 and later; reprise.h includes it there.
 *
 * What they point to lives until the end of the full expression, as the argument of a call does. RP_OPTIONS works inside
 * functions and sets at most 24 fields, in the order in which they are written; a value with a comma outside parentheses
 * is two arguments of the macro. Names in rp_cxx_ and RP_CXX_ are not for programs.
 */
#ifndef REPRISE_CXX_H
#define REPRISE_CXX_H
#ifdef __cplusplus

#include <stddef.h>

template <class T, size_t N> struct rp_cxx_list {
    T items[N];
    enum : size_t { count = N };
    const T *data() const { return items; }
};
template <class T, class... A> rp_cxx_list<T, sizeof...(A)> rp_cxx_make(A... a) { return {{static_cast<T>(a)...}}; }
template <class T> const T *rp_cxx_address(const T &value) { return &value; }

#define RP_CXX_LIST(type, ...)                                                                                         \
    (rp_cxx_make<type>(__VA_ARGS__).data()), (size_t(decltype(rp_cxx_make<type>(__VA_ARGS__))::count))
#define RP_DIMS(...) RP_CXX_LIST(int64_t, __VA_ARGS__)
#define RP_TENSORS(...) RP_CXX_LIST(rp_tensor *, __VA_ARGS__)
#define RP_OPTIONS(type, ...)                                                                                          \
    rp_cxx_address([&]() -> type {                                                                                     \
        type rp_cxx_made = type();                                                                                     \
        rp_cxx_made.struct_size = sizeof(type);                                                                        \
        RP_CXX_SET(__VA_ARGS__) return rp_cxx_made;                                                                    \
    }())

/* One statement for each ".field = value". */
/* clang-format off */
#define RP_CXX_SET_1(x) rp_cxx_made x;
#define RP_CXX_SET_2(x, ...) rp_cxx_made x; RP_CXX_SET_1(__VA_ARGS__)
#define RP_CXX_SET_3(x, ...) rp_cxx_made x; RP_CXX_SET_2(__VA_ARGS__)
#define RP_CXX_SET_4(x, ...) rp_cxx_made x; RP_CXX_SET_3(__VA_ARGS__)
#define RP_CXX_SET_5(x, ...) rp_cxx_made x; RP_CXX_SET_4(__VA_ARGS__)
#define RP_CXX_SET_6(x, ...) rp_cxx_made x; RP_CXX_SET_5(__VA_ARGS__)
#define RP_CXX_SET_7(x, ...) rp_cxx_made x; RP_CXX_SET_6(__VA_ARGS__)
#define RP_CXX_SET_8(x, ...) rp_cxx_made x; RP_CXX_SET_7(__VA_ARGS__)
#define RP_CXX_SET_9(x, ...) rp_cxx_made x; RP_CXX_SET_8(__VA_ARGS__)
#define RP_CXX_SET_10(x, ...) rp_cxx_made x; RP_CXX_SET_9(__VA_ARGS__)
#define RP_CXX_SET_11(x, ...) rp_cxx_made x; RP_CXX_SET_10(__VA_ARGS__)
#define RP_CXX_SET_12(x, ...) rp_cxx_made x; RP_CXX_SET_11(__VA_ARGS__)
#define RP_CXX_SET_13(x, ...) rp_cxx_made x; RP_CXX_SET_12(__VA_ARGS__)
#define RP_CXX_SET_14(x, ...) rp_cxx_made x; RP_CXX_SET_13(__VA_ARGS__)
#define RP_CXX_SET_15(x, ...) rp_cxx_made x; RP_CXX_SET_14(__VA_ARGS__)
#define RP_CXX_SET_16(x, ...) rp_cxx_made x; RP_CXX_SET_15(__VA_ARGS__)
#define RP_CXX_SET_17(x, ...) rp_cxx_made x; RP_CXX_SET_16(__VA_ARGS__)
#define RP_CXX_SET_18(x, ...) rp_cxx_made x; RP_CXX_SET_17(__VA_ARGS__)
#define RP_CXX_SET_19(x, ...) rp_cxx_made x; RP_CXX_SET_18(__VA_ARGS__)
#define RP_CXX_SET_20(x, ...) rp_cxx_made x; RP_CXX_SET_19(__VA_ARGS__)
#define RP_CXX_SET_21(x, ...) rp_cxx_made x; RP_CXX_SET_20(__VA_ARGS__)
#define RP_CXX_SET_22(x, ...) rp_cxx_made x; RP_CXX_SET_21(__VA_ARGS__)
#define RP_CXX_SET_23(x, ...) rp_cxx_made x; RP_CXX_SET_22(__VA_ARGS__)
#define RP_CXX_SET_24(x, ...) rp_cxx_made x; RP_CXX_SET_23(__VA_ARGS__)
#define RP_CXX_PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, \
    _21, _22, _23, _24, name, ...) name
#define RP_CXX_SET(...) RP_CXX_PICK(__VA_ARGS__, RP_CXX_SET_24, RP_CXX_SET_23, RP_CXX_SET_22, RP_CXX_SET_21, \
    RP_CXX_SET_20, RP_CXX_SET_19, RP_CXX_SET_18, RP_CXX_SET_17, RP_CXX_SET_16, RP_CXX_SET_15, RP_CXX_SET_14, \
    RP_CXX_SET_13, RP_CXX_SET_12, RP_CXX_SET_11, RP_CXX_SET_10, RP_CXX_SET_9, RP_CXX_SET_8, RP_CXX_SET_7, \
    RP_CXX_SET_6, RP_CXX_SET_5, RP_CXX_SET_4, RP_CXX_SET_3, RP_CXX_SET_2, RP_CXX_SET_1, )(__VA_ARGS__)
/* clang-format on */

#endif
#endif
