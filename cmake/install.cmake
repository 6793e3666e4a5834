# What `make install` puts where: libraries, headers, pkg-config file, CMake package, man page, docs.
include(CMakePackageConfigHelpers)
if(REPRISE_HERE)
    install(CODE "message(FATAL_ERROR \"this build is for the machine that made it: configure one without REPRISE_HERE to install\")")
endif()
set(RP_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/reprise)

install(TARGETS reprise reprise_static EXPORT reprise-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(RP_HAVE_ONEDNN)
    install(TARGETS reprise-onednn LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES ${RP_PUBLIC_HEADERS} ${RP_GENERATED_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

install(EXPORT reprise-targets NAMESPACE reprise:: DESTINATION ${RP_CMAKE_DIR})
configure_package_config_file(cmake/reprise-config.cmake.in ${PROJECT_BINARY_DIR}/reprise-config.cmake
    INSTALL_DESTINATION ${RP_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/reprise-config-version.cmake
    VERSION ${PROJECT_VERSION} COMPATIBILITY ${RP_COMPATIBILITY})
install(FILES ${PROJECT_BINARY_DIR}/reprise-config.cmake ${PROJECT_BINARY_DIR}/reprise-config-version.cmake
    DESTINATION ${RP_CMAKE_DIR})

set(RP_AT "@")
configure_file(cmake/reprise.pc.in ${PROJECT_BINARY_DIR}/reprise.pc.pre @ONLY)
# The prefix may be given at install time (cmake --install --prefix), so the file is finished then.
install(CODE "
    set(RP_PREFIX \"\${CMAKE_INSTALL_PREFIX}\")
    configure_file(\"${PROJECT_BINARY_DIR}/reprise.pc.pre\" \"${PROJECT_BINARY_DIR}/reprise.pc\" @ONLY)")
install(FILES ${PROJECT_BINARY_DIR}/reprise.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Pages for users, those for developers in a folder below; texts of the project beside them.
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
install(FILES CHANGELOG.md SECURITY.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_file(docs/reprise.1.in ${PROJECT_BINARY_DIR}/reprise.1 @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/reprise.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

# The reference as HTML, where Doxygen is: the target `doc`. It is installed if it was made.
find_program(RP_DOXYGEN doxygen)
find_program(RP_DOC_PYTHON python3)
mark_as_advanced(RP_DOXYGEN RP_DOC_PYTHON)
if(RP_DOXYGEN AND RP_DOC_PYTHON)
    set(RP_DOC_HEADERS ${RP_PUBLIC_HEADERS} ${RP_GENERATED_HEADERS})
    list(FILTER RP_DOC_HEADERS EXCLUDE REGEX "_calls\\.h$|reprise_cxx\\.h$")
    list(JOIN RP_DOC_HEADERS " " RP_DOC_INPUT)
    string(APPEND RP_DOC_INPUT " ${PROJECT_SOURCE_DIR}/docs/reference.dox")
    configure_file(docs/Doxyfile.in ${PROJECT_BINARY_DIR}/Doxyfile @ONLY)
    add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/html/index.html
        COMMAND ${RP_DOXYGEN} ${PROJECT_BINARY_DIR}/Doxyfile
        DEPENDS ${RP_DOC_HEADERS} docs/Doxyfile.in docs/reference.dox scripts/doc_filter.py
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} COMMENT "Writing the reference" VERBATIM)
    add_custom_target(doc DEPENDS ${PROJECT_BINARY_DIR}/html/index.html)
else()
    add_custom_target(doc COMMAND ${CMAKE_COMMAND} -E echo "the reference needs doxygen and python3")
endif()
install(DIRECTORY ${PROJECT_BINARY_DIR}/html DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
