# What `cmake --install` lays down: the library, its headers, the command line, and the files that
# `find_package(blockscale)` reads; nothing of the Python package. Headers go to a folder of their own, because `core/` is too
# common a name to stand beside other people's headers.
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/blockscale)
set(header_folder ${CMAKE_INSTALL_INCLUDEDIR}/blockscale)

install(TARGETS blockscale EXPORT blockscale_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${header_folder})
install(DIRECTORY include/blockscale DESTINATION ${header_folder} FILES_MATCHING PATTERN "*.h")
# Those of core/ that the public ones include; tests/package/test_packaging.py follows them.
foreach(name IN ITEMS config format input_transform layout layout_print packing recipe scale_layout)
  install(FILES core/${name}.h DESTINATION ${header_folder}/core)
endforeach()
blockscale_install_kernel_pack(lib/blockscale)
install(EXPORT blockscale_targets FILE blockscaleTargets.cmake NAMESPACE blockscale::
  DESTINATION ${package_folder})
if(BLOCKSCALE_CLI)
  install(TARGETS blockscale_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(cmake/blockscaleConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/blockscaleConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/blockscaleConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/blockscaleConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/blockscaleConfigVersion.cmake DESTINATION ${package_folder})
