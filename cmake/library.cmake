# perdure_library(ROOMS room …)
#
# libperdure: one shared library, target `perdure` (perdure::perdure), of all objects of the worker's rooms.
# It exports what the public headers mark with PERDURE_API and nothing else: everything is compiled with
# hidden visibility, and cmake/exports.map keeps in what that alone would let out (templates of the standard
# library and of header-only libraries). What the rooms link is private to it: who links libperdure needs
# none of our dependencies.
function(perdure_library)
  cmake_parse_arguments(LIBRARY "" "" "ROOMS" ${ARGN})
  add_library(perdure SHARED)
  add_library(perdure::perdure ALIAS perdure)
  foreach(room IN LISTS LIBRARY_ROOMS)
    string(REPLACE "/" "_" id ${room})
    target_sources(perdure PRIVATE $<TARGET_OBJECTS:perdure_${id}>)
    # For what the room itself links; its archive adds no object that is not there already.
    target_link_libraries(perdure PRIVATE perdure_${id})
  endforeach()
  target_include_directories(perdure INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(perdure INTERFACE cxx_std_17)
  set(map ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(perdure PRIVATE "LINKER:--version-script=${map}")
  if(NOT PERDURE_SANITIZE)  # the sanitizers' own symbols come from the program
    target_link_options(perdure PRIVATE "LINKER:--no-undefined")
  endif()
  set_target_properties(perdure PROPERTIES
    LINKER_LANGUAGE CXX LINK_DEPENDS ${map} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endfunction()
