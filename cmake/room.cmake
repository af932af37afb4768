# perdure_room(NAME SOURCES … DEPS room … LIBS library …)
#
# One room of the house: a static library perdure_NAME of the sources in src/NAME. DEPS are the arrows: the
# rooms whose headers this one may include. LIBS are libraries from outside, for this room's sources only
# (PUBLIC_LIBS: for its headers as well). The arrows are written to a file, from which a test checks every
# #include.
define_property(GLOBAL PROPERTY PERDURE_ARROWS BRIEF_DOCS "room:dep,dep" FULL_DOCS "room:dep,dep")

function(perdure_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPS;LIBS;PUBLIC_LIBS" ${ARGN})
  string(REPLACE "/" "_" id ${name})
  set(sources "")
  foreach(source IN LISTS ROOM_SOURCES)
    list(APPEND sources ${CMAKE_SOURCE_DIR}/src/${name}/${source})
  endforeach()
  add_library(perdure_${id} STATIC ${sources})
  target_include_directories(perdure_${id} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(perdure_${id} PRIVATE perdure_warnings ${ROOM_LIBS}
                        PUBLIC Threads::Threads ${ROOM_PUBLIC_LIBS})
  foreach(dep IN LISTS ROOM_DEPS)
    string(REPLACE "/" "_" dep_id ${dep})
    target_link_libraries(perdure_${id} PUBLIC perdure_${dep_id})
  endforeach()
  string(REPLACE ";" "," deps "${ROOM_DEPS}")
  set_property(GLOBAL APPEND PROPERTY PERDURE_ARROWS "${name}:${deps}")
endfunction()

add_custom_target(unit_tests COMMENT "what the unit label runs")

# perdure_test(NAME SOURCES … ROOMS … LIBS … LABELS … ARGS … TIMEOUT seconds)
# One GoogleTest binary, build/bin/tests/NAME, run as one ctest.
function(perdure_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;ROOMS;LIBS;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE perdure_warnings GTest::gmock GTest::gtest_main ${TEST_LIBS})
  foreach(room IN LISTS TEST_ROOMS)
    string(REPLACE "/" "_" id ${room})
    target_link_libraries(${name} PRIVATE perdure_${id})
  endforeach()
  # Tests wait, they do not compute: what they test is optimised, they need not be.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
  add_test(NAME ${name} COMMAND ${name} ${TEST_ARGS})
  # The sanitizer builds make only this: what the unit label runs.
  if("unit" IN_LIST TEST_LABELS)
    add_dependencies(unit_tests ${name})
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "${TEST_LABELS}")
  # Tests with processes of their own judge time; neighbours on the same cores would blur it.
  if("process" IN_LIST TEST_LABELS)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# Writes the arrows of all declared rooms to `file`, a line "room:dep,dep" each, for the test that reads
# every #include (tests/house). "partial": an optional part is out, so src/ may hold undeclared rooms.
function(perdure_write_arrows file)
  get_property(arrows GLOBAL PROPERTY PERDURE_ARROWS)
  if(NOT (PERDURE_WITH_GRPC AND PERDURE_SUPERVISOR AND PERDURE_TORCH))
    list(APPEND arrows partial)
  endif()
  list(JOIN arrows "\n" text)
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}\n" @ONLY)
endfunction()
