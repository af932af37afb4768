# Language, warnings, sanitizers, compiler cache: the same for every target of ours.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(THREADS_PREFER_PTHREAD_FLAG ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Warnings are errors in our own code only: targets get them by linking perdure_warnings.
add_library(perdure_warnings INTERFACE)
target_compile_options(perdure_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wnon-virtual-dtor -Woverloaded-virtual -Werror
  $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>
  # What gcc says of a class with a member of an unnamed namespace, when that is in an included file;
  # a unity build includes all sources.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage>
  $<$<CXX_COMPILER_ID:Clang>:-Wshadow>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

if(PERDURE_SANITIZE)
  add_compile_options(-fsanitize=${PERDURE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  if(PERDURE_SANITIZE MATCHES "undefined")
    # A check at each pointer: slow to compile, and AddressSanitizer finds what matters of it.
    add_compile_options(-fno-sanitize=null,alignment)
  endif()
  add_link_options(-fsanitize=${PERDURE_SANITIZE})
endif()
