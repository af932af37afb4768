# cmake --install: the public headers, libperdure, the libtorch adapter, the program, and what
# find_package(perdure) reads. Nothing of src/ is installed.
include(CMakePackageConfigHelpers)
set(PERDURE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/perdure)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/perdure DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "torch.h" EXCLUDE)
install(TARGETS perdure EXPORT perdureTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT perdureTargets NAMESPACE perdure:: DESTINATION ${PERDURE_CMAKE_DIR})

if(TARGET perdure_torch)
  set_target_properties(perdure_torch PROPERTIES EXPORT_NAME torch)
  install(FILES ${PROJECT_SOURCE_DIR}/include/perdure/torch.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/perdure)
  install(TARGETS perdure_torch EXPORT perdureTorchTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT perdureTorchTargets NAMESPACE perdure:: DESTINATION ${PERDURE_CMAKE_DIR})
endif()

if(TARGET perdure_program)
  install(TARGETS perdure_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/perdureConfig.cmake.in
  ${CMAKE_BINARY_DIR}/perdureConfig.cmake INSTALL_DESTINATION ${PERDURE_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/perdureConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/perdureConfig.cmake ${CMAKE_BINARY_DIR}/perdureConfigVersion.cmake
        DESTINATION ${PERDURE_CMAKE_DIR})
