# What `make install` puts where: libraries, headers, pkg-config file, CMake package, man page, docs.
include(CMakePackageConfigHelpers)
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
