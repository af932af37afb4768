# perdure_proto(NAME PROTOS file …)
#
# A static library perdure_NAME of the protobuf messages and gRPC services in src/wire/proto. The files are
# given relative to that directory (perdure/v1/key_value.proto); the generated sources land in the build
# directory and are included as "perdure/v1/key_value.grpc.pb.h". They are compiled without our warnings,
# and their headers count as system headers for who includes them.
function(perdure_proto name)
  cmake_parse_arguments(PROTO "" "" "PROTOS" ${ARGN})
  set(root ${CMAKE_SOURCE_DIR}/src/wire/proto)
  set(out ${CMAKE_BINARY_DIR}/generated/proto)
  file(MAKE_DIRECTORY ${out})
  set(inputs "")
  foreach(proto IN LISTS PROTO_PROTOS)
    list(APPEND inputs ${root}/${proto})
  endforeach()
  set(sources "")
  foreach(proto IN LISTS PROTO_PROTOS)
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(generated ${out}/${stem}.pb.cc ${out}/${stem}.grpc.pb.cc)
    # Depends on all of them: the files may import each other, and they are few.
    add_custom_command(
      OUTPUT ${generated} ${out}/${stem}.pb.h ${out}/${stem}.grpc.pb.h
      COMMAND protobuf::protoc --proto_path=${root} --cpp_out=${out} --grpc_out=${out}
              --plugin=protoc-gen-grpc=${PERDURE_GRPC_PLUGIN} ${root}/${proto}
      DEPENDS ${inputs}
      COMMENT "Generating ${proto}"
      VERBATIM)
    list(APPEND sources ${generated})
  endforeach()
  add_custom_target(perdure_${name}_generated DEPENDS ${sources})  # for clang-tidy, which compiles nothing
  add_library(perdure_${name} STATIC ${sources})
  add_dependencies(perdure_${name} perdure_${name}_generated)
  set_target_properties(perdure_${name} PROPERTIES UNITY_BUILD OFF)  # each file repeats the names of the others
  target_compile_options(perdure_${name} PRIVATE -w)
  if(PERDURE_SANITIZE)
    target_compile_options(perdure_${name} PRIVATE -fno-sanitize=all)  # generated: not ours to check
  endif()
  target_include_directories(perdure_${name} SYSTEM PUBLIC ${out})
  target_link_libraries(perdure_${name} PUBLIC gRPC::grpc++ protobuf::libprotobuf Threads::Threads)
endfunction()
