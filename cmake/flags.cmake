# Compiler and linker flags of all project code, on the interface target rp_flags.
# The numbers contract needs the same bits from every compiler and ISA: no contraction, no fast-math, never -march=native.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C) # else programs are compiled to lie anywhere and linked not to

if(REPRISE_SANITIZE)
    # -O1 keeps sanitizer builds affordable; the flags replace those of the build type.
    set(RP_OPT -O1)
    set(RP_OPT_ISA -O1)
    set(CMAKE_C_FLAGS_RELEASE "")
    set(RP_DEBUG -g1)
    set(RP_DEBUG_ISA -g1)
elseif(CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(RP_OPT -Og)
    set(RP_OPT_ISA -Og)
    set(CMAKE_C_FLAGS_DEBUG "")
    set(RP_DEBUG -g)
    set(RP_DEBUG_ISA -g)
else()
    set(RP_OPT -O2)
    set(RP_OPT_ISA -O3)
    set(CMAKE_C_FLAGS_RELEASE "")
    if(REPRISE_ASSERT)
        set(RP_DEBUG -g1)
    else()
        set(RP_DEBUG -DNDEBUG)
    endif()
    # Kernels of one instruction set assert nothing when they run: their objects are the same in the builds of tests and of releases, so
    # that tests run what is released and one build can have the objects of another (REPRISE_KERNEL_LAUNCHER). Not so with REPRISE_HERE
    # those of the narrowest set and of sets that the machine lacks.
    set(RP_DEBUG_ISA -DNDEBUG)
endif()

add_library(rp_flags INTERFACE)
target_compile_definitions(rp_flags INTERFACE _GNU_SOURCE)
# A target whose property RP_KERNELS is set is one of kernels; RP_RELEASED: no sanitizer checks it, it is compiled as in a release.
set(RP_IF_RELEASED "$<BOOL:$<TARGET_PROPERTY:RP_RELEASED>>")
target_compile_options(rp_flags INTERFACE
    $<IF:${RP_IF_RELEASED},-DNDEBUG,$<IF:$<BOOL:$<TARGET_PROPERTY:RP_KERNELS>>,${RP_DEBUG_ISA},${RP_DEBUG}>>
    -ffp-contract=off -fno-math-errno -fno-trapping-math
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual -Wvla)
# gcc clears a struct of more than 32 bytes with `rep stos`, which takes some 30 cycles to begin: as long as the rest of a small
# function. Stores of vectors instead, in what is not compiled for one instruction set.
include(CheckCCompilerFlag)
set(RP_CLEAR "-mmemset-strategy=vector_loop:512:noalign,libcall:-1:noalign")
check_c_compiler_flag("${RP_CLEAR}" RP_HAS_CLEAR)
if(NOT RP_HAS_CLEAR)
    set(RP_CLEAR "")
endif()
# What turns an overflow into an end: canaries, checked copies, tables that are read-only once the program runs. Not for kernels of one
# instruction set, which handle no text. Sanitizers bring checks of their own, and -Og has nothing to check copies with.
set(RP_HARD "")
set(RP_HARD_LINK "")
if(NOT REPRISE_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(RP_HARD -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
    set(RP_HARD_LINK LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
endif()
if(REPRISE_WERROR)
    target_compile_options(rp_flags INTERFACE -Werror)
endif()
set(RP_IF_OPTIMISED 1)
if(REPRISE_SANITIZE)
    set(RP_IF_OPTIMISED ${RP_IF_RELEASED})
    set(RP_SANITIZERS -fsanitize=${REPRISE_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(rp_flags INTERFACE -fsanitize=${REPRISE_SANITIZE})
    if(REPRISE_SANITIZE MATCHES "undefined")
        list(APPEND RP_SANITIZERS -fno-sanitize-recover=undefined)
        # clang counts null pointers that are moved with pointers that overflow, and gcc does not: operands that are absent or empty are moved
        # as others are, and not read. Here a function between the check and its report tells the two apart.
        if(CMAKE_C_COMPILER_ID MATCHES "Clang")
            list(APPEND RP_SANITIZERS -fsanitize-recover=pointer-overflow)
            add_library(rp_null_moved STATIC ${PROJECT_SOURCE_DIR}/tools/sanitize/null_moved.c)
            target_compile_options(rp_null_moved PRIVATE -O1 -Wall -Wextra -Werror)
            target_link_libraries(rp_flags INTERFACE rp_null_moved)
            target_link_options(rp_flags INTERFACE LINKER:--wrap=__ubsan_handle_pointer_overflow)
        endif()
    endif()
    # Where checks of addresses are calls, those of wide vectors have a way that is short.
    if(REPRISE_SANITIZE MATCHES "address")
        add_library(rp_wide_access STATIC ${PROJECT_SOURCE_DIR}/tools/sanitize/wide_access.c)
        target_compile_options(rp_wide_access PRIVATE -O2 -Wall -Wextra -Werror)
        target_link_libraries(rp_flags INTERFACE rp_wide_access)
        target_link_options(rp_flags INTERFACE LINKER:--wrap=__asan_loadN LINKER:--wrap=__asan_storeN)
    endif()
    target_compile_options(rp_flags INTERFACE "$<$<NOT:${RP_IF_RELEASED}>:${RP_SANITIZERS}>")
endif()

# Call sites are "file:line": the same text wherever the tree lies, whether the compiler is given full paths or (by Ninja, for a
# build folder inside the tree) relative ones.
file(RELATIVE_PATH RP_UP ${CMAKE_BINARY_DIR} ${PROJECT_SOURCE_DIR})
set(RP_PREFIX_MAP "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=" "-fmacro-prefix-map=${RP_UP}=")
