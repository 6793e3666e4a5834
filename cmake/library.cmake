# Targets: reprise (shared), reprise_static (archive; tests link it to reach private functions), and the modules.
# Both come from the same position-independent objects, compiled once.
set(REPRISE_XXHASH_INCLUDE "" CACHE PATH "Folder of xxhash.h, where it is not installed")
find_path(RP_XXHASH_INCLUDE xxhash.h HINTS ${REPRISE_XXHASH_INCLUDE})
if(NOT RP_XXHASH_INCLUDE)
    message(FATAL_ERROR "xxhash.h was not found; install libxxhash-dev, or set REPRISE_XXHASH_INCLUDE")
endif()

file(GLOB_RECURSE RP_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.c)
set(RP_ISA_SOURCES ${RP_SOURCES})
list(FILTER RP_ISA_SOURCES INCLUDE REGEX "/src/kernel/cpu/isa/")
set(RP_ONEDNN_SOURCES ${RP_SOURCES})
list(FILTER RP_ONEDNN_SOURCES INCLUDE REGEX "/src/kernel/onednn/")
list(FILTER RP_SOURCES EXCLUDE REGEX "/src/kernel/(cpu/isa|onednn)/")

set(RP_OBJECTS "")
function(rp_object_library name)
    add_library(${name} OBJECT ${ARGN})
    target_link_libraries(${name} PRIVATE rp_flags Threads::Threads)
    target_include_directories(${name} PRIVATE
        ${PROJECT_SOURCE_DIR}/include ${RP_GEN_INCLUDE} ${PROJECT_SOURCE_DIR}/src ${RP_GEN})
    target_include_directories(${name} SYSTEM PRIVATE ${RP_XXHASH_INCLUDE})
    target_compile_definitions(${name} PRIVATE RP_BUILD REPRISE_NO_OPS)
    if(NOT REPRISE_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
        # Threads may have little stack: 128 KB with musl, less in a fiber. (Sanitizers and -Og keep every variable apart.)
        target_compile_options(${name} PRIVATE -Wframe-larger-than=16384)
    endif()
    add_dependencies(${name} rp_generated)
    set(RP_OBJECTS ${RP_OBJECTS} $<TARGET_OBJECTS:${name}> PARENT_SCOPE)
endfunction()

rp_object_library(rp_objects ${RP_SOURCES} ${RP_GEN}/reprise_embed.c)
target_compile_options(rp_objects PRIVATE ${RP_OPT} ${RP_CLEAR} ${RP_HARD})

# Kernels take most of the time of a build, and ccache as their launcher has the objects of one build for the next.
function(rp_kernel_library name)
    rp_object_library(${name} ${ARGN})
    set(RP_OBJECTS ${RP_OBJECTS} PARENT_SCOPE)
    set_target_properties(${name} PROPERTIES RP_KERNELS ON)
    if(REPRISE_KERNEL_LAUNCHER)
        set_target_properties(${name} PROPERTIES C_COMPILER_LAUNCHER "${REPRISE_KERNEL_LAUNCHER}")
    endif()
endfunction()

# Vector kernels: one source, one object an instruction set; CPUID chooses at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(RP_ISAS baseline avx2 avx512)
else()
    set(RP_ISAS baseline)
    target_compile_definitions(rp_objects PRIVATE RP_ISA_BASELINE_ONLY)
endif()
set(RP_ISA_BYTES_baseline 16)
set(RP_ISA_BYTES_avx2 32)
set(RP_ISA_BYTES_avx512 64)
set(RP_ISA_FLAGS_baseline "")
set(RP_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(RP_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512)
# Products are chains of fma where a machine has it. gcc 13 and later take generic x86 processors for ones on which such chains are
# slow and leave some of them a multiplication and an addition: slower, and other bits than the chain next to it.
include(CheckCCompilerFlag)
set(RP_FMA -ffp-contract=fast)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # clang takes any parameter and does nothing with it
    check_c_compiler_flag(--param=avoid-fma-max-bits=0 RP_HAS_AVOID_FMA)
endif()
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND RP_HAS_AVOID_FMA)
    list(APPEND RP_FMA --param=avoid-fma-max-bits=0)
endif()
# A check of clang's sanitizers may come to stand between the two, which then stay apart; gcc's sanitizers check these files.
if(REPRISE_SANITIZE AND CMAKE_C_COMPILER_ID MATCHES "Clang")
    list(APPEND RP_FMA -fno-sanitize=all)
endif()
foreach(source IN LISTS RP_ISA_SOURCES)
    if(source MATCHES "/gemm\\.c$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${RP_FMA}")
    endif()
endforeach()
# In the frames that AddressSanitizer keeps for detect_stack_use_after_return, gcc takes its own temporaries of 64 bytes for
# aligned, and they are not: without that check in these objects, a build of gcc runs with the option.
if(REPRISE_SANITIZE MATCHES "address" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND RP_ISA_FLAGS_avx512 --param=asan-use-after-return=0)
    # Checks as calls: gcc takes a minute less for each of the large files.
    set(RP_CHECKS --param=asan-instrumentation-with-call-threshold=0)
    foreach(isa IN LISTS RP_ISAS)
        list(APPEND RP_ISA_FLAGS_${isa} ${RP_CHECKS})
    endforeach()
endif()
# What is undefined in one set is so in the others: gcc's checks of it double the work on these files. Kernels
# of the everyday set in between have them, lines those of the narrowest. Behind rp_flags, which asks for them.
add_library(rp_defined INTERFACE)
if(REPRISE_SANITIZE MATCHES "undefined")
    target_compile_options(rp_defined INTERFACE -fno-sanitize=undefined)
endif()
if(RP_ISA_SOURCES)
    foreach(isa IN LISTS RP_ISAS)
        rp_kernel_library(rp_isa_${isa} ${RP_ISA_SOURCES})
        target_compile_options(rp_isa_${isa} PRIVATE ${RP_OPT_ISA} ${RP_ISA_FLAGS_${isa}})
        if(NOT isa STREQUAL "avx2" AND NOT RP_ISAS STREQUAL "baseline")
            target_link_libraries(rp_isa_${isa} PRIVATE rp_defined)
        endif()
        if(isa STREQUAL "baseline" AND NOT RP_ISAS STREQUAL "baseline") # for machines that have nothing wider
            target_compile_options(rp_isa_${isa} PRIVATE ${RP_OPT})
        endif()
        target_compile_definitions(rp_isa_${isa} PRIVATE RP_ISA=${isa} RP_VEC_BYTES=${RP_ISA_BYTES_${isa}})
        if(RP_ISAS STREQUAL "baseline")
            target_compile_definitions(rp_isa_${isa} PRIVATE RP_ISA_BASELINE_ONLY)
        endif()
    endforeach()
endif()

# Line functions of everyday programs: a program made of the library's own objects emits them, each ISA compiles them. It is a
# program of the target: a cross build runs it through CMAKE_CROSSCOMPILING_EMULATOR.
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
    message(FATAL_ERROR "a cross build needs -DCMAKE_CROSSCOMPILING_EMULATOR=PROGRAM (qemu): it runs rp_genlines of the target")
endif()
set(RP_SO_FAR ${RP_OBJECTS})
set(RP_LINES ${RP_GEN}/lines.c)
add_executable(rp_genlines ${PROJECT_SOURCE_DIR}/tools/gen/genlines.c ${RP_SO_FAR})
target_link_libraries(rp_genlines PRIVATE rp_flags Threads::Threads m ${CMAKE_DL_LIBS})
target_include_directories(rp_genlines PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${RP_GEN_INCLUDE} ${PROJECT_SOURCE_DIR}/src ${RP_GEN})
if(RP_ISAS STREQUAL "baseline")
    target_compile_definitions(rp_genlines PRIVATE RP_ISA_BASELINE_ONLY)
endif()
add_dependencies(rp_genlines rp_generated)
add_custom_command(OUTPUT ${RP_LINES}
    COMMAND ${CMAKE_COMMAND} -E env --unset=REPRISE_CPU ASAN_OPTIONS=detect_leaks=0
        ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:rp_genlines> ${RP_LINES}.new
    COMMAND ${CMAKE_COMMAND} -E copy_if_different ${RP_LINES}.new ${RP_LINES} # compiled again only where it changed
    DEPENDS rp_genlines COMMENT "Generating line functions" VERBATIM)
add_custom_target(rp_lines_source DEPENDS ${RP_LINES})
# Minutes for clang's sanitizers, and threads write rows of their own there: gcc's address sanitizer checks them.
if(REPRISE_SANITIZE AND (CMAKE_C_COMPILER_ID MATCHES "Clang" OR REPRISE_SANITIZE MATCHES "thread"))
    set_source_files_properties(${RP_LINES} PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
endif()
foreach(isa IN LISTS RP_ISAS)
    rp_kernel_library(rp_lines_${isa} ${RP_LINES})
    add_dependencies(rp_lines_${isa} rp_lines_source)
    target_compile_options(rp_lines_${isa} PRIVATE ${RP_OPT} ${RP_ISA_FLAGS_${isa}} -w)
    if(NOT isa STREQUAL "baseline")
        target_link_libraries(rp_lines_${isa} PRIVATE rp_defined)
    endif()
    # Nothing else is left to compile by then, and narrow vectors make far more code: less work on it, for machines that have
    # nothing wider.
    if(isa STREQUAL "baseline" AND NOT RP_ISAS STREQUAL "baseline")
        target_compile_options(rp_lines_${isa} PRIVATE -O1)
    endif()
    target_compile_definitions(rp_lines_${isa} PRIVATE RP_ISA=${isa} RP_VEC_BYTES=${RP_ISA_BYTES_${isa}})
    if(RP_ISAS STREQUAL "baseline")
        target_compile_definitions(rp_lines_${isa} PRIVATE RP_ISA_BASELINE_ONLY)
    endif()
endforeach()

function(rp_product target)
    target_link_libraries(${target} PUBLIC Threads::Threads m ${CMAKE_DL_LIBS})
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:rp_flags>)
    target_include_directories(${target} PUBLIC
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${RP_GEN_INCLUDE}>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    add_dependencies(${target} rp_generated)
endfunction()

add_library(reprise SHARED ${RP_OBJECTS})
rp_product(reprise)
set_target_properties(reprise PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${RP_SOVERSION}
    LINK_DEPENDS ${RP_MAP})
# nodelete: threads of the library, and what threads of the program run when they end, outlive a dlclose.
target_link_options(reprise PRIVATE ${RP_HARD_LINK} "LINKER:--version-script=${RP_MAP}" LINKER:--as-needed LINKER:-z,nodelete)
if(NOT REPRISE_SANITIZE)
    target_link_options(reprise PRIVATE LINKER:-z,defs)
endif()
add_library(reprise::reprise ALIAS reprise)

add_library(reprise_static STATIC ${RP_OBJECTS})
rp_product(reprise_static)
set_target_properties(reprise_static PROPERTIES OUTPUT_NAME reprise)
# A program that carries the library inside does not pass its functions on.
target_compile_definitions(reprise_static INTERFACE REPRISE_STATIC)
add_library(reprise::reprise_static ALIAS reprise_static)

# oneDNN needs a C++ runtime, so it stays out of the library: a module that the library opens at first use.
set(RP_HAVE_ONEDNN FALSE)
if(REPRISE_ONEDNN AND RP_ONEDNN_SOURCES)
    find_path(RP_DNNL_INCLUDE NAMES dnnl.h PATH_SUFFIXES oneapi/dnnl)
    find_library(RP_DNNL_LIBRARY NAMES dnnl)
    if(RP_DNNL_INCLUDE AND RP_DNNL_LIBRARY)
        set(RP_HAVE_ONEDNN TRUE)
        add_library(reprise-onednn MODULE ${RP_ONEDNN_SOURCES})
        target_link_libraries(reprise-onednn PRIVATE rp_flags Threads::Threads ${RP_DNNL_LIBRARY})
        target_include_directories(reprise-onednn PRIVATE
            ${PROJECT_SOURCE_DIR}/include ${RP_GEN_INCLUDE} ${PROJECT_SOURCE_DIR}/src ${RP_GEN})
        target_include_directories(reprise-onednn SYSTEM PRIVATE ${RP_DNNL_INCLUDE})
        target_compile_options(reprise-onednn PRIVATE ${RP_OPT} ${RP_HARD})
        target_link_options(reprise-onednn PRIVATE ${RP_HARD_LINK})
        add_dependencies(reprise-onednn rp_generated)
    else()
        message(STATUS "oneDNN was not found; libreprise-onednn.so is not built")
    endif()
endif()
