# The libtorch adapter: target perdure_torch (perdure::torch), a shared library over libperdure's API and
# libtorch. Its objects are a target of their own, so that tests can put them on rooms instead of libperdure.
set(sources
  gradient_bucketer.cc metrics.cc module_state.cc optimizer_state.cc rng_state.cc view.cc)
list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/src/torch/)

# libtorch 1.13's own headers are not C++20 to clang; those of today are nothing older.
function(perdure_libtorch_standard target)
  if(Torch_VERSION VERSION_LESS 2 AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set_target_properties(${target} PROPERTIES CXX_STANDARD 17)
  endif()
endfunction()

add_library(perdure_torch_objects OBJECT ${sources})
target_include_directories(perdure_torch_objects PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(perdure_torch_objects
  PUBLIC torch PRIVATE perdure_warnings fmt::fmt nlohmann_json::nlohmann_json)
perdure_libtorch_standard(perdure_torch_objects)

if(TARGET perdure)
  add_library(perdure_torch SHARED $<TARGET_OBJECTS:perdure_torch_objects>)
  add_library(perdure::torch ALIAS perdure_torch)
  target_include_directories(perdure_torch INTERFACE
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(perdure_torch PUBLIC perdure torch PRIVATE fmt::fmt)
  target_link_options(perdure_torch PRIVATE
    "LINKER:--no-undefined" "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map")
  set_target_properties(perdure_torch PROPERTIES
    LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endif()

# It includes the public headers and its own, and no other room's.
set_property(GLOBAL APPEND PROPERTY PERDURE_ARROWS "torch:")
