# Build-time generation: op headers and tables (tools/gen/genops.c with src/ops/schema.c), call sites of the other functions
# (tools/gen/gencalls.c with the public headers), embedded texts (tools/gen/embed.c with src/embed.list) and the version map
# (tools/gen/genmap.c). Everything else depends on
# the target rp_generated. The programs are plain C and run on the machine that builds.
set(RP_GEN_INCLUDE ${PROJECT_BINARY_DIR}/include)
set(RP_GEN ${PROJECT_BINARY_DIR}/gen)
file(MAKE_DIRECTORY ${RP_GEN_INCLUDE} ${RP_GEN})
set(RP_GENERATED "")

# Build-time programs share no sanitizer with the library: a leak in one of them is not the product's.
function(rp_host_program name)
    add_executable(${name} ${ARGN})
    target_compile_options(${name} PRIVATE -O1 $<$<BOOL:${REPRISE_WERROR}>:-Werror>
        -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual -Wvla)
    target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
endfunction()

# Ops: prototypes and call-site macros for users (reprise_ops.h), tables for the library (gen/*.inc).
set(RP_PUBLIC_HEADERS "")
file(GLOB RP_PUBLIC_HEADERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/*.h)
set(RP_GENERATED_HEADERS "")
set(RP_GENOPS_SOURCE ${PROJECT_SOURCE_DIR}/tools/gen/genops.c)
file(GLOB RP_GENOPS_EXISTS CONFIGURE_DEPENDS ${RP_GENOPS_SOURCE})
if(RP_GENOPS_EXISTS)
    rp_host_program(rp_genops ${RP_GENOPS_SOURCE} src/ops/schema.c)
    # reprise.h includes what this program and the next are to write: for the program itself these are empty files.
    file(CONFIGURE OUTPUT ${RP_GEN}/host/reprise_ops.h CONTENT "/* Generated: no ops while ops are generated. */\n" @ONLY)
    file(CONFIGURE OUTPUT ${RP_GEN}/host/reprise_calls.h CONTENT "/* Generated: no sites while ops are generated. */\n" @ONLY)
    target_include_directories(rp_genops PRIVATE include ${RP_GEN}/host src)
    # Rows are in *.def; the rules that they use are found in the sources beside them. What a source names of ops and rules is
    # a file of its own, RP__CALLS and RP__RULES to that source: a new row compiles again what names it.
    file(GLOB RP_OP_TABLES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/*.def)
    file(GLOB_RECURSE RP_OP_USERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.c ${PROJECT_SOURCE_DIR}/src/*.h)
    list(FILTER RP_OP_USERS EXCLUDE REGEX "/src/(core|device|kernel)/")
    # The tables that it writes are those whose names it has in its text: the build must know them, or an object would
    # be older than a table that it includes.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${RP_GENOPS_SOURCE})
    file(READ ${RP_GENOPS_SOURCE} text)
    string(REGEX MATCHALL "[A-Za-z0-9_]+\\.inc\"" RP_OP_INCS "${text}")
    string(REPLACE "\"" "" RP_OP_INCS "${RP_OP_INCS}")
    list(TRANSFORM RP_OP_INCS PREPEND ${RP_GEN}/)
    list(REMOVE_DUPLICATES RP_OP_INCS)
    file(MAKE_DIRECTORY ${RP_GEN}/uses)
    foreach(source IN LISTS RP_OP_USERS)
        if(NOT source MATCHES "\\.c$")
            continue()
        endif()
        file(RELATIVE_PATH use ${PROJECT_SOURCE_DIR}/src ${source})
        string(REPLACE "/" "_" use ${use})
        list(APPEND RP_OP_INCS ${RP_GEN}/uses/${use}.calls)
        set(names RP__CALLS=\"uses/${use}.calls\")
        if(source MATCHES "/src/ops/")
            list(APPEND RP_OP_INCS ${RP_GEN}/uses/${use}.rules)
            list(APPEND names RP__RULES=\"uses/${use}.rules\")
        endif()
        set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS "${names}")
    endforeach()
    set(RP_GENERATED_HEADERS ${RP_GEN_INCLUDE}/reprise_ops.h)
    add_custom_command(OUTPUT ${RP_GENERATED_HEADERS} ${RP_OP_INCS}
        COMMAND rp_genops ${RP_GEN_INCLUDE} ${RP_GEN} ${PROJECT_SOURCE_DIR}/src ${RP_OP_TABLES} ${RP_OP_USERS}
        DEPENDS rp_genops ${RP_OP_TABLES} ${RP_OP_USERS} COMMENT "Generating op headers and tables" VERBATIM)
    list(APPEND RP_GENERATED ${RP_GENERATED_HEADERS} ${RP_OP_INCS})
else()
    # No ops yet: the header that reprise.h includes is empty.
    set(RP_GENERATED_HEADERS ${RP_GEN_INCLUDE}/reprise_ops.h)
    file(CONFIGURE OUTPUT ${RP_GENERATED_HEADERS} CONTENT "/* Generated: no ops. */\n" @ONLY)
endif()

# Call sites of what is no op: the macros of each header that has RP_CALL declarations, and the functions without a site.
rp_host_program(rp_gencalls tools/gen/gencalls.c)
foreach(base reprise reprise_ir reprise_nn reprise_io reprise_text)
    set(out ${RP_GEN_INCLUDE}/${base}_calls.h ${RP_GEN}/${base}_calls.inc)
    add_custom_command(OUTPUT ${out}
        COMMAND rp_gencalls ${PROJECT_SOURCE_DIR}/include/${base}.h ${RP_GEN_INCLUDE} ${RP_GEN}
        DEPENDS rp_gencalls ${PROJECT_SOURCE_DIR}/include/${base}.h COMMENT "Generating call sites of ${base}.h" VERBATIM)
    list(APPEND RP_GENERATED ${out})
    list(APPEND RP_GENERATED_HEADERS ${RP_GEN_INCLUDE}/${base}_calls.h)
endforeach()

# Texts that the library carries as strings: preludes of emitted code. src/embed.list: one path or glob a line.
rp_host_program(rp_embed tools/gen/embed.c)
set(RP_EMBED_FILES "")
file(GLOB RP_EMBED_LIST CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/embed.list)
if(RP_EMBED_LIST)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/embed.list)
    file(STRINGS ${PROJECT_SOURCE_DIR}/src/embed.list RP_EMBED_LINES REGEX "^[^#]")
    foreach(line IN LISTS RP_EMBED_LINES)
        string(STRIP "${line}" line)
        if(line STREQUAL "")
            continue()
        endif()
        file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${line})
        if(NOT found)
            message(FATAL_ERROR "src/embed.list names '${line}', which matches no file")
        endif()
        list(APPEND RP_EMBED_FILES ${found})
    endforeach()
    list(REMOVE_DUPLICATES RP_EMBED_FILES)
endif()
add_custom_command(OUTPUT ${RP_GEN}/reprise_embed.c ${RP_GEN}/reprise_embed.h
    COMMAND rp_embed ${RP_GEN}/reprise_embed.c ${RP_GEN}/reprise_embed.h ${RP_EMBED_FILES}
    DEPENDS rp_embed ${RP_EMBED_FILES} COMMENT "Embedding texts" VERBATIM)
list(APPEND RP_GENERATED ${RP_GEN}/reprise_embed.c ${RP_GEN}/reprise_embed.h)

# Version map: every function that a public header declares with default visibility, and nothing else.
rp_host_program(rp_genmap tools/gen/genmap.c)
set(RP_MAP ${RP_GEN}/reprise.map)
set(RP_MAP_SOURCE "")
foreach(header IN LISTS RP_PUBLIC_HEADERS RP_GENERATED_HEADERS)
    get_filename_component(base ${header} NAME)
    string(APPEND RP_MAP_SOURCE "#include <${base}>\n")
endforeach()
file(CONFIGURE OUTPUT ${RP_GEN}/public_headers.c CONTENT "${RP_MAP_SOURCE}" @ONLY)
add_custom_command(OUTPUT ${RP_MAP}
    COMMAND ${CMAKE_C_COMPILER} -E -P -I${PROJECT_SOURCE_DIR}/include -I${RP_GEN_INCLUDE}
            -o ${RP_GEN}/public_headers.i ${RP_GEN}/public_headers.c
    COMMAND rp_genmap REPRISE_${RP_SOVERSION} ${RP_GEN}/public_headers.i ${RP_MAP}
    DEPENDS rp_genmap ${RP_GEN}/public_headers.c ${RP_PUBLIC_HEADERS} ${RP_GENERATED_HEADERS}
    COMMENT "Generating the version map" VERBATIM)
list(APPEND RP_GENERATED ${RP_MAP})

add_custom_target(rp_generated DEPENDS ${RP_GENERATED})
