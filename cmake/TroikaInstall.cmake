# find_package(troika CONFIG) for consumers: one target troika::troika with everything, and one per room.
include(CMakePackageConfigHelpers)

add_library(troika_troika INTERFACE)
add_library(troika::troika ALIAS troika_troika)
set_target_properties(troika_troika PROPERTIES EXPORT_NAME troika)
target_link_libraries(troika_troika INTERFACE troika_train troika_plan)
install(TARGETS troika_troika EXPORT troika-targets)
install(FILES troika/troika.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troika)

# The files that a user without the sources needs.
install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/troika)
install(EXPORT troika-targets NAMESPACE troika:: DESTINATION ${package_dir})
configure_package_config_file(cmake/troika-config.cmake.in troika-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(troika-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/TroikaTorchPackage.cmake ${CMAKE_CURRENT_BINARY_DIR}/troika-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/troika-config-version.cmake DESTINATION ${package_dir})
